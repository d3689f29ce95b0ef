"""Every move between states that there is, by its verb, and that there are no others."""

from __future__ import annotations

import pytest
from conformance.driver import claim_one, expire

from runqueue import LeaseLost, RunStatus
from runqueue.states import TRANSITIONS

P, L = RunStatus.PENDING, RunStatus.LEASED
DONE, DEAD, CANCELLED = RunStatus.DONE, RunStatus.DEAD, RunStatus.CANCELLED


def shape(run):
    return run.status, run.attempts, run.fencing_token


def types(q, run_id):
    return [event.type for event in q.events(run_id)]


def ended(run):
    return run.finished_at is not None and run.locked_by is None and run.locked_until is None


def test_complete(q):
    run = q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    q.complete(lease, {"answer": 42})
    done = q.get(run.id)
    assert shape(done) == (DONE, 1, 1)
    assert done.result == {"answer": 42}
    assert ended(done)
    assert types(q, run.id) == []


def test_complete_many_ends_each_with_its_own_result(q):
    for _ in range(10):
        q.enqueue("k", tenant_id="t")
    leases = [x.lease for x in q.claim("w", limit=10)]
    q.complete_many((lease, {"n": n}) for n, lease in enumerate(reversed(leases)))
    assert [q.get(x.run_id).result["n"] for x in leases] == list(range(9, -1, -1))
    q.complete_many([])


def test_a_result_that_cannot_be_stored_ends_nothing(q):
    q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    with pytest.raises(ValueError, match=r"^result\.x:"):
        q.complete(lease, {"x": float("inf")})
    q.complete(lease)


def test_fail_with_attempts_left_retries(q):
    run = q.enqueue("k", tenant_id="t", max_attempts=2)
    failed = q.fail(claim_one(q).lease, ValueError("boom"))
    assert shape(failed) == (P, 1, 1)
    assert (failed.error_code, failed.error_message) == ("ValueError", "boom")
    assert failed == q.get(run.id)
    assert types(q, run.id) == ["run.failed"]
    assert claim_one(q).run.attempts == 2


def test_fail_on_the_last_attempt_is_dead(q):
    run = q.enqueue("k", tenant_id="t", max_attempts=1)
    dead = q.fail(claim_one(q).lease, "it broke")
    assert shape(dead) == (DEAD, 1, 1)
    assert (dead.error_code, dead.error_message) == ("error", "it broke")
    assert ended(dead)
    assert types(q, run.id) == ["run.dead"]


def test_a_final_error_is_dead_at_once(q):
    q.enqueue("k", tenant_id="t", max_attempts=9)
    assert shape(q.fail(claim_one(q).lease, "bad input", retry=False)) == (DEAD, 1, 1)


def test_the_delay_of_a_failure_is_the_one_given(q, facts):
    q.enqueue("k", tenant_id="t")
    q.fail(claim_one(q).lease, "later", delay=500)
    [[wait]] = facts.sql("select extract(epoch from available_at - clock_timestamp()) from runqueue.agent_runs")
    assert 490 < wait <= 500
    assert q.claim("w") == []


def test_success_forgets_the_earlier_error(q):
    run = q.enqueue("k", tenant_id="t")
    q.fail(claim_one(q).lease, "first time")
    q.complete(claim_one(q).lease)
    assert (q.get(run.id).error_code, q.get(run.id).error_message) == (None, None)


def test_release_does_not_charge_the_attempt(q):
    run = q.enqueue("k", tenant_id="t", max_attempts=1)
    for n in range(1, 4):
        claimed = claim_one(q)
        assert shape(claimed.run) == (L, 1, n)
        back = q.release(claimed.lease, reason="deploy")
        assert shape(back) == (P, 0, n)
    assert types(q, run.id) == ["run.released"] * 3
    assert q.events(run.id)[0].data == {"reason": "deploy", "delay": 0.0}


def test_release_after_a_delay(q):
    run = q.enqueue("k", tenant_id="t")
    q.release(claim_one(q).lease, delay=600)
    assert q.claim("w") == []
    assert q.explain(run.id).rule == "scheduled"


def test_cancel_of_a_pending_run_is_at_once(q):
    run = q.enqueue("k", tenant_id="t", delay=100)
    cancelled = q.cancel(run.id, "not wanted")
    assert shape(cancelled) == (CANCELLED, 0, 0)
    assert ended(cancelled)
    assert (cancelled.cancel_reason, cancelled.cancel_requested_at is None) == ("not wanted", False)
    assert types(q, run.id) == ["run.cancelled"]


def test_cancel_of_a_leased_run_is_asked_for_and_settled_by_its_holder(q):
    run = q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    asked = q.cancel(run.id, "stop")
    assert shape(asked) == (L, 1, 1)
    [answer] = q.heartbeat([lease])
    assert answer.renewed
    assert answer.cancel_requested
    settled = q.settle_cancelled(lease)
    assert shape(settled) == (CANCELLED, 1, 1)
    assert ended(settled)
    assert types(q, run.id) == ["run.cancel_requested", "run.cancelled"]


def test_a_second_cancel_changes_nothing(q, facts):
    pending, leased = q.enqueue("k", tenant_id="t", queue="later"), q.enqueue("k", tenant_id="t")
    claim_one(q)
    for run in (pending, leased):
        first = q.cancel(run.id, "one")
        before = facts.everything()
        assert q.cancel(run.id, "two") == first
        assert facts.everything() == before


@pytest.mark.parametrize("verb", ["fail", "last fail", "release"])
def test_a_run_that_was_asked_to_stop_ends_cancelled(q, verb):
    run = q.enqueue("k", tenant_id="t", max_attempts=1 if verb == "last fail" else 3)
    lease = claim_one(q).lease
    q.cancel(run.id)
    got = q.release(lease) if verb == "release" else q.fail(lease, "stopped in the middle")
    assert shape(got) == (CANCELLED, 1, 1)
    assert types(q, run.id) == ["run.cancel_requested", "run.cancelled"]


def test_a_completion_before_the_worker_heard_of_the_cancel_wins(q):
    run = q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    q.cancel(run.id, "too late")
    q.complete(lease, "ready")
    done = q.get(run.id)
    assert (done.status, done.result, done.cancel_reason) == (DONE, "ready", "too late")
    assert done.cancel_requested_at is not None


@pytest.mark.parametrize("end", ["dead", "cancelled"])
def test_retry_starts_the_attempts_again_and_not_the_token(q, end):
    run = q.enqueue("k", tenant_id="t", max_attempts=1)
    lease = claim_one(q).lease
    if end == "cancelled":
        q.cancel(run.id)
    assert q.fail(lease, "x").status == end
    again = q.retry(run.id)
    assert shape(again) == (P, 0, 1)
    assert (again.error_code, again.cancel_requested_at, again.cancel_reason, again.finished_at) == (None,) * 4
    assert types(q, run.id)[-1] == "run.retried"
    assert shape(claim_one(q).run) == (L, 1, 2)


def test_retry_after_a_delay(q):
    run = q.cancel(q.enqueue("k", tenant_id="t").id)
    q.retry(run.id, delay=60)
    assert q.claim("w") == []


def test_an_ended_run_is_returned_as_it_is_by_cancel_and_a_live_one_by_retry(q, facts):
    done, pending, leased = (q.enqueue("k", tenant_id="t", queue=x) for x in ("a", "b", "c"))
    q.complete(claim_one(q, queues=["a"]).lease)
    claim_one(q, queues=["c"])
    before = facts.everything()
    assert q.cancel(done.id).status is DONE
    for run in (done, pending, leased):
        assert q.retry(run.id) == q.get(run.id)
    assert facts.everything() == before


def test_no_verb_moves_a_run_that_has_ended(q, facts):
    leases = []
    for end in ("done", "dead", "cancelled"):
        run = q.enqueue("k", tenant_id="t", max_attempts=1)
        lease = claim_one(q).lease
        expire(facts, lease)
        if end == "cancelled":
            q.cancel(run.id)
        q.complete(lease) if end == "done" else q.reap()
        assert q.get(run.id).status == end
        leases.append(lease)
    before = facts.everything()
    for lease in leases[1:]:  # the reaper ended these, so their holder has lost them
        for write in (q.complete, q.release, q.settle_cancelled, lambda x: q.fail(x, "x")):
            with pytest.raises(LeaseLost):
                write(lease)
    assert q.claim("w", limit=10) == []
    assert q.reap().total == 0
    assert [x.lost for x in q.heartbeat(leases)] == [True] * 3
    assert facts.everything() == before


def test_the_table_of_moves_allows_what_the_audit_allows():
    from runqueue.testing.audit import ALLOWED

    moves = {(t.source and t.source.value, t.target.value) for t in TRANSITIONS} - {(None, "pending")}
    assert moves == ALLOWED - {("pending", "pending")}
