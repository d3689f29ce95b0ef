"""What a lost lease tries to write leaves no row in any table, although the newer holder has the same name."""

from __future__ import annotations

import pytest
from conformance.driver import claim_one, lose
from sqlalchemy import text

from runqueue import LeaseLost


def own_row(q, lease):
    with q.transaction(lease) as tx:
        tx.connection.execute(text("insert into public.mine values ('zombie')"))


def event(q, lease):
    with q.transaction(lease) as tx:
        tx.emit("message", {"text": "zombie"})


def checkpoint(q, lease):
    with q.transaction(lease) as tx:
        tx.save_checkpoint({"turn": 99})


def child(q, lease):
    with q.transaction(lease) as tx:
        tx.enqueue("k", tenant_id="t", queue="children", idempotency_key="child")


def all_at_once(q, lease):
    with q.transaction(lease) as tx:
        tx.connection.execute(text("insert into public.mine values ('zombie')"))
        tx.emit("message")
        tx.save_checkpoint({"turn": 99})
        tx.enqueue("k", tenant_id="t", queue="children")


WRITES = {
    "complete": lambda q, lease: q.complete(lease, "zombie"),
    "complete_many": lambda q, lease: q.complete_many([(lease, "zombie")]),
    "fail": lambda q, lease: q.fail(lease, "zombie"),
    "final fail": lambda q, lease: q.fail(lease, "zombie", retry=False),
    "release": lambda q, lease: q.release(lease),
    "settle_cancelled": lambda q, lease: q.settle_cancelled(lease),
    "own row": own_row,
    "event": event,
    "checkpoint": checkpoint,
    "child": child,
    "all at once": all_at_once,
}


@pytest.fixture
def stale(q, facts):
    """A lost lease, the newer one of the same worker, and the newer holder's work so far."""
    facts.sql("create table public.mine (x text)")
    q.enqueue("k", {"x": 1}, tenant_id="t")
    old = claim_one(q).lease
    new = lose(q, facts, old).lease
    all_at_once_of_new = {"turn": 1}
    with q.transaction(new) as tx:
        tx.connection.execute(text("insert into public.mine values ('mine')"))
        tx.emit("message")
        tx.save_checkpoint(all_at_once_of_new)
    return old, new


@pytest.mark.parametrize("name", WRITES)
def test_a_stale_write_raises_and_leaves_no_row(q, facts, stale, name):
    old, new = stale
    before = facts.everything()
    with pytest.raises(LeaseLost) as caught:
        WRITES[name](q, old)
    assert caught.value.leases == (old,)
    assert facts.everything() == before
    WRITES[name](q, new)  # and the newest may
    assert facts.everything() != before


def test_a_stale_heartbeat_says_lost_and_renews_nothing(q, facts, stale):
    old, _ = stale
    before = facts.everything()
    [answer] = q.heartbeat([old])
    assert (answer.lease, answer.renewed, answer.lost, answer.time_left) == (old, False, True, 0.0)
    assert facts.everything() == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_heartbeat_tells_the_lost_lease_from_the_newest_of_the_same_run(q, stale, order):
    leases = [stale[n] for n in order]
    answers = {x.lease.fencing_token: x for x in q.heartbeat(leases)}
    assert (answers[1].renewed, answers[1].lost) == (False, True)
    assert (answers[2].renewed, answers[2].lost) == (True, False)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_batch_tells_the_lost_lease_from_the_newest_of_the_same_run(q, stale, order):
    leases = [stale[n] for n in order]
    with pytest.raises(LeaseLost) as caught:
        q.complete_many((x, f"by {x.fencing_token}") for x in leases)
    assert caught.value.leases == (stale[0],)
    assert q.get(stale[1].run_id).result == "by 2"


def test_a_lost_lease_does_not_spoil_its_batch(q, facts, stale):
    old, new = stale
    other = q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    with pytest.raises(LeaseLost) as caught:
        q.complete_many([(old, 1), (lease, 2)])
    assert caught.value.leases == (old,)
    assert q.get(other.id).result == 2
    assert [x.lost for x in q.heartbeat([old, new, lease])] == [True, False, True]


def test_a_lease_of_a_run_that_never_was_is_lost(q, facts, stale):
    ghost = type(stale[0])(type(stale[0].run_id)(int=1), 1, stale[0].locked_until)
    before = facts.everything()
    for name, write in WRITES.items():
        with pytest.raises(LeaseLost):
            write(q, ghost)
        assert facts.everything() == before, name
    assert q.heartbeat([ghost])[0].lost
    assert q.heartbeat([]) == []


def test_a_redriven_run_does_not_come_back_to_its_old_holder(q, facts):
    facts.sql("create table public.mine (x text)")
    run = q.enqueue("k", tenant_id="t", max_attempts=1)
    old = claim_one(q).lease
    facts.sql("update runqueue.agent_runs set locked_until = clock_timestamp() - interval '1 s'")
    assert q.reap().dead == 1
    q.retry(run.id)
    newer = claim_one(q)
    assert newer.lease.fencing_token == 2
    before = facts.everything()
    for name, write in WRITES.items():
        with pytest.raises(LeaseLost):
            write(q, old)
        assert facts.everything() == before, name


def test_an_error_in_the_block_is_the_callers_and_nothing_is_kept(q, facts, stale):
    before = facts.everything()
    with pytest.raises(ZeroDivisionError), q.transaction(stale[1]) as tx:  # noqa: PT012
        tx.connection.execute(text("insert into public.mine values ('gone')"))
        tx.emit("gone")
        tx.save_checkpoint({"gone": 1})
        tx.enqueue("k", tenant_id="t")
        1 / 0  # noqa: B018
    assert facts.everything() == before
