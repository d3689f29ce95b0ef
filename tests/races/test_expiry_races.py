"""The sweep, or the claim that takes expired runs, against a holder who is only late."""

from __future__ import annotations

import pytest
from conformance.driver import claim_one, expire, lose
from races.forced import background, lock_row, result, uncommitted, wait_blocked
from sqlalchemy import create_engine

from runqueue import LeaseLost, RunQueue, RunStatus
from runqueue.operations import claim as claim_operation
from runqueue.operations import maintain, settle


def take(queue, policy):
    """What takes an expired run under this policy; how many were taken."""
    return len(queue.claim("thief")) if policy == "takeover" else queue.reap().total


@pytest.fixture
def slow(gate, policy, settings):
    slow = RunQueue(gate.engine(), claim=policy, settings=settings)
    slow.claim("w", kinds=["none"])  # so that who claims first does not hold the row that states the install's rules
    return slow


@pytest.fixture
def expired(queue, facts):
    queue.enqueue("k", tenant_id="t")
    lease = claim_one(queue).lease
    expire(facts, lease)
    return lease


def test_a_completion_after_the_sweeps_snapshot_stands(queue, policy, engine, facts, gate, slow, expired):
    with gate.shut():
        taking = background(take, slow, policy)
        wait_blocked(engine)
        queue.complete(expired, "finished")
        before = facts.everything()
    assert result(taking) == 0
    assert facts.everything() == before
    assert queue.get(expired.run_id).result == "finished"


def test_a_heartbeat_after_the_sweeps_snapshot_keeps_the_lease(queue, policy, engine, facts, gate, slow, expired):
    with gate.shut():
        taking = background(take, slow, policy)
        wait_blocked(engine)
        assert queue.heartbeat([expired])[0].renewed
        before = facts.everything()
    assert result(taking) == 0
    assert facts.everything() == before
    assert queue.get(expired.run_id).fencing_token == 1


def test_a_newer_lease_after_the_sweeps_snapshot_is_not_swept(queue, policy, engine, facts, gate, slow, expired):
    with gate.shut():
        taking = background(take, slow, policy)
        wait_blocked(engine)
        newer = lose(queue, facts, expired)
        before = facts.everything()
    assert result(taking) == 0
    assert facts.everything() == before
    queue.complete(newer.lease)


def test_a_run_claimed_after_a_claims_snapshot_is_not_claimed_again(queue, engine, gate, slow):
    queue.enqueue("k", tenant_id="t")
    with gate.shut():
        second = background(slow.claim, "late")
        wait_blocked(engine)
        first = claim_one(queue, "early")
    assert result(second) == []
    assert queue.get(first.run.id).locked_by == "early"


def test_a_run_cancelled_after_a_claims_snapshot_is_not_claimed(queue, engine, gate, slow):
    run = queue.enqueue("k", tenant_id="t")
    with gate.shut():
        claiming = background(slow.claim, "w")
        wait_blocked(engine)
        assert queue.cancel(run.id).status is RunStatus.CANCELLED
    assert result(claiming) == []
    assert queue.get(run.id).fencing_token == 0


def test_a_checkpoint_committed_after_a_claims_snapshot_is_delivered(queue, engine, facts, gate, slow):
    queue.enqueue("k", tenant_id="t")
    lease = claim_one(queue).lease
    queue.release(lease)
    with gate.shut():
        claiming = background(slow.claim, "late")
        wait_blocked(engine)
        newer = claim_one(queue).lease
        with queue.transaction(newer) as tx:
            tx.save_checkpoint({"turn": 7})
        queue.release(newer)
        facts.sql("update runqueue.agent_runs set available_at = created_at")
    [claimed] = result(claiming)
    assert (claimed.checkpoint, claimed.run.fencing_token) == ({"turn": 7}, 3)


WRITES = {
    "complete": lambda queue, lease: queue.complete(lease),
    "fail": lambda queue, lease: queue.fail(lease, "x"),
    "release": lambda queue, lease: queue.release(lease),
    "settle_cancelled": lambda queue, lease: queue.settle_cancelled(lease),
    "event": lambda queue, lease: _in_transaction(queue, lease, emit=True),
    "fence": lambda queue, lease: _in_transaction(queue, lease, emit=False),
}


def _in_transaction(queue, lease, *, emit):
    with queue.transaction(lease) as tx:
        if emit:
            tx.emit("late")


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("committed", [True, False])
def test_a_write_that_waited_for_the_sweep_is_judged_by_its_outcome(queue, engine, facts, expired, name, committed):
    ctx = RunQueue(engine, claim="reaper", settings=queue.settings).core.ctx
    with uncommitted(engine, lambda c: maintain.reap(c, ctx, 10)) as sweep:
        writing = background(WRITES[name], queue, expired)
        wait_blocked(engine)
        sweep.commit() if committed else sweep.rollback()
    if committed:
        with pytest.raises(LeaseLost):
            result(writing)
        assert facts.row(expired.run_id)["event_seq"] == 1
    else:
        result(writing)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_waited_for_a_takeover_is_lost(queue, engine, facts, expired, name):
    ctx = RunQueue(engine, claim="takeover", settings=queue.settings).core.ctx
    with uncommitted(engine) as thief:
        [newer] = claim_operation.claim(thief, ctx, "w", ["default"], 1, None, 60)
        writing = background(WRITES[name], queue, expired)
        wait_blocked(engine)
        thief.commit()
    before = facts.row(expired.run_id)
    with pytest.raises(LeaseLost):
        result(writing)
    assert facts.row(expired.run_id) == before
    queue.complete(newer.lease)


def test_a_heartbeat_skips_a_locked_row_and_calls_it_unknown(queue, engine, expired):
    queue.enqueue("k", tenant_id="t", queue="other")
    other = claim_one(queue, queues=["other"]).lease
    with uncommitted(engine, lambda c: lock_row(c, expired.run_id)):
        locked, free = queue.heartbeat([expired, other])
    assert (locked.renewed, locked.lost) == (False, False)
    assert locked.time_left < 0
    assert free.renewed
    assert queue.heartbeat([expired])[0].renewed


def test_the_sweep_passes_by_a_locked_row(queue, policy, engine, expired, facts):
    with uncommitted(engine, lambda c: lock_row(c, expired.run_id)):
        assert take(queue, policy) == 0
    assert take(queue, policy) == 1


def test_an_open_transaction_of_the_holder_keeps_the_run_from_being_taken(queue, policy, engine, expired):
    """A handler's row that refers to its run locks it FOR KEY SHARE: heartbeats pass, takers do not."""
    with uncommitted(engine, lambda c: lock_row(c, expired.run_id, "key share")):
        assert take(queue, policy) == 0
        assert queue.heartbeat([expired])[0].renewed
        queue.complete(expired)


def test_a_fenced_write_holds_the_run_until_its_commit(queue, policy, engine, expired):
    from runqueue.operations import fenced

    with uncommitted(engine) as holder:
        fenced.write(holder, queue.core.ctx, expired, [], None)
        assert take(queue, policy) == 0
        fenced.write(holder, queue.core.ctx, expired, [("e", "{}")], "{}")
        assert take(queue, policy) == 0
        holder.commit()
    assert [x.type for x in queue.events(expired.run_id)] == ["e"]
    assert take(queue, policy) == 1


def test_a_heartbeat_does_not_wait_on_a_handlers_transaction(queue, expired):
    with queue.transaction(expired) as tx:
        tx.emit("message")
        tx.save_checkpoint({"turn": 1})
        tx.enqueue("k", tenant_id="t")
        [answer] = queue.heartbeat([expired])
        assert answer.renewed


def test_batches_in_opposite_orders_do_not_deadlock(queue, engine):
    # plans that go through a batch in the order in which it was given
    plans = "-cenable_hashjoin=off -cenable_mergejoin=off -cenable_seqscan=off -cenable_bitmapscan=off"
    direct = create_engine(engine.url, connect_args={"options": plans})
    for _ in range(40):
        queue.enqueue("k", tenant_id="t")
    leases = [x.lease for x in queue.claim("w", limit=40)]
    middle = sorted(x.run_id for x in leases)[20]  # both have locked something when they wait for it
    with uncommitted(engine, lambda c: lock_row(c, middle)):
        calls = [
            background(_complete_without_retry, queue, direct, order) for order in (leases, list(reversed(leases)))
        ]
        wait_blocked(engine, 2)
    lost = [result(x) for x in calls]
    direct.dispose()
    assert lost == [[], []]
    assert {queue.get(x.run_id).status for x in leases} == {RunStatus.DONE}


def _complete_without_retry(queue, engine, leases):
    with engine.begin() as connection:
        return settle.complete_many(connection, queue.core.ctx, [(x, None) for x in leases])
