"""What becomes of a run whose holder fell silent, in fleets of one policy and of both."""

from __future__ import annotations

import pytest
from conformance.driver import claim_one, expire

from runqueue import LeaseLost, NewRun, RunStatus


@pytest.fixture(params=["same", "other"])
def rescuer(request, fleet, policy):
    """The queue of the worker that comes next: of the same policy, or of the other."""
    return fleet(policy if request.param == "same" else {"reaper": "takeover", "takeover": "reaper"}[policy])


def types(q, run_id):
    return [event.type for event in q.events(run_id)]


def test_a_lost_run_is_leased_again(q, rescuer, facts):
    run = q.enqueue("k", {"x": 1}, tenant_id="t")
    expire(facts, claim_one(q).lease)
    rescuer.reap()
    again = claim_one(rescuer, "other")
    assert (again.run.id, again.run.attempts, again.run.fencing_token) == (run.id, 2, 2)
    assert again.run.locked_by == "other"
    assert types(q, run.id) == ["run.lost"]


def test_the_sweep_moves_what_no_claim_of_its_policy_takes(q, facts, policy):
    q.enqueue("k", tenant_id="t")
    expire(facts, claim_one(q).lease)
    assert q.reap().pending == (1 if policy == "reaper" else 0)
    assert claim_one(q).run.attempts == 2


@pytest.mark.parametrize("by", ["reap", "claim"])
def test_used_up_attempts_end_dead(q, rescuer, facts, by):
    run = q.enqueue("k", tenant_id="t", max_attempts=1)
    expire(facts, claim_one(q).lease)
    rescuer.claim("w", limit=5) if by == "claim" else None
    rescuer.reap()
    dead = q.get(run.id)
    assert (dead.status, dead.error_code, dead.attempts) == (RunStatus.DEAD, "lease_expired", 1)
    assert dead.finished_at is not None
    assert types(q, run.id) == ["run.dead"]


def test_runs_that_must_end_do_not_stand_in_the_way_of_those_that_wait(q, facts):
    ending = q.enqueue_many([NewRun(kind="k", tenant_id="t", max_attempts=1) for _ in range(5)])
    expire(facts, *(x.lease for x in q.claim("w", limit=5)))
    waiting = q.enqueue("k", tenant_id="t")
    [claimed] = q.claim("w", limit=5)
    assert claimed.run.id == waiting.id
    q.reap()
    assert {q.get(run.id).status for run in ending} == {RunStatus.DEAD}


@pytest.mark.parametrize("by", ["reap", "claim"])
def test_a_run_that_must_not_be_tried_again_ends_dead(q, rescuer, facts, by):
    q.handler("once", on_lost="fail")(lambda run: None)
    run = q.enqueue("once", tenant_id="t", max_attempts=5)
    expire(facts, claim_one(q, kinds=["once"]).lease)
    rescuer.claim("w", limit=5) if by == "claim" else None
    rescuer.reap()
    assert (q.get(run.id).status, q.get(run.id).error_code) == (RunStatus.DEAD, "lease_expired")
    assert types(q, run.id) == ["run.dead"]


@pytest.mark.parametrize("by", ["reap", "claim"])
@pytest.mark.parametrize("max_attempts", [1, 3])
@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_was_asked_to_stop_ends_cancelled(q, rescuer, facts, by, max_attempts, late):
    run = q.enqueue("k", tenant_id="t", max_attempts=max_attempts)
    lease = claim_one(q).lease
    steps = [lambda: q.cancel(run.id, "stop"), lambda: expire(facts, lease)]
    for step in reversed(steps) if late else steps:
        step()
    if by == "claim":
        assert rescuer.claim("w", limit=5) == []
    rescuer.reap()
    got = q.get(run.id)
    assert (got.status, got.cancel_reason, got.error_code) == (RunStatus.CANCELLED, "stop", None)
    assert types(q, run.id) == ["run.cancel_requested", "run.cancelled"]
    assert q.claim("w", limit=5) == []


def test_a_late_heartbeat_and_completion_are_accepted_while_nobody_took_the_run(q, facts):
    run = q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    expire(facts, lease)
    [answer] = q.heartbeat([lease])
    assert answer.renewed
    assert answer.time_left > 50
    assert q.reap().total == 0
    assert q.claim("w", limit=5) == []
    expire(facts, lease)
    q.complete(lease, "late")
    assert q.get(run.id).result == "late"


@pytest.mark.parametrize("verb", ["fail", "release", "settle_cancelled", "transaction"])
def test_other_late_writes_are_accepted_too(q, facts, verb):
    run = q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    expire(facts, lease)
    if verb == "transaction":
        with q.transaction(lease) as tx:
            tx.emit("late")
    elif verb == "fail":
        q.fail(lease, "late")
    else:
        getattr(q, verb)(lease)
    assert len(q.events(run.id)) == 1


def test_live_leases_are_left_alone(q, rescuer):
    for n in range(5):
        q.enqueue("k", tenant_id="t", max_attempts=1 + n % 2)
    leases = [x.lease for x in q.claim("w", limit=5)]
    q.cancel(leases[0].run_id)
    assert rescuer.reap().total == 0
    assert rescuer.claim("w", limit=5) == []
    assert [x.renewed for x in q.heartbeat(leases)] == [True] * 5


def test_a_sweep_is_bounded(q, facts):
    for _ in range(7):
        q.enqueue("k", tenant_id="t", max_attempts=1)
    expire(facts, *(x.lease for x in q.claim("w", limit=7)))
    assert [q.reap(limit=3).dead for _ in range(4)] == [3, 3, 1, 0]


def test_a_lost_run_waits_its_backoff(fleet, policy, facts):
    from dataclasses import replace

    slow = fleet(policy, settings=replace(fleet.settings, retry_base=100, retry_cap=150))
    run = slow.enqueue("k", tenant_id="t")
    claim_one(slow)
    facts.sql("update runqueue.agent_runs set locked_until = clock_timestamp() - interval '1 s'")
    slow.reap()
    assert slow.claim("w", limit=5) == []
    facts.sql(
        "update runqueue.agent_runs set updated_at = updated_at - interval '200 s', "
        "available_at = available_at - interval '200 s'"
    )
    slow.reap()
    assert claim_one(slow).run.id == run.id


def test_a_mixed_fleet_shares_the_work(q, rescuer, facts):
    made = {q.enqueue("k", tenant_id="t").id for _ in range(12)}
    taken, n = set(), 0
    while len(taken) < 12:
        n += 1
        assert n < 50
        for one in (q, rescuer):
            one.reap()
            for claimed in one.claim("w", limit=2):
                if claimed.run.attempts == 1 and n % 3 == 0:
                    expire(facts, claimed.lease)
                    continue
                one.complete(claimed.lease)
                taken.add(claimed.run.id)
    assert taken == made
    assert all(q.get(x).status is RunStatus.DONE for x in made)


def test_the_holder_hears_of_the_loss_at_its_next_write(q, rescuer, facts):
    q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    expire(facts, lease)
    rescuer.reap()
    newer = claim_one(rescuer)
    with pytest.raises(LeaseLost):
        q.complete(lease)
    rescuer.complete(newer.lease)
