"""list, stats, explain, tenants."""

from __future__ import annotations

import pytest
from conformance.driver import claim_one, expire
from sqlalchemy import Engine, event

from runqueue import InvalidRun, NewRun, RunStatus


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_pages_join_to_the_whole_list(q, size):
    made = q.enqueue_many(NewRun(kind="k", tenant_id="t", input=n) for n in range(7))
    got, cursor, pages = [], None, 0
    while True:
        page = q.list(limit=size, cursor=cursor)
        got += page.runs
        pages += 1
        if (cursor := page.cursor) is None:
            break
        assert len(page.runs) == size
    assert got == list(reversed(made))
    assert pages == -(-7 // size)


def test_runs_that_come_meanwhile_do_not_disturb_the_pages(q):
    q.enqueue_many(NewRun(kind="k", tenant_id="t", input=n) for n in range(4))
    first = q.list(limit=2)
    q.enqueue("k", "new", tenant_id="t")
    assert [x.input for x in (*first.runs, *q.list(limit=2, cursor=first.cursor).runs)] == [3, 2, 1, 0]


def test_filters_are_exact_and_combine(q):
    for tenant in ("a", "a%", "A"):
        for lane in ("x", "y"):
            q.enqueue("k", tenant_id=tenant, queue=lane)
    assert {(x.tenant_id, x.queue) for x in q.list(tenant_id="a").runs} == {("a", "x"), ("a", "y")}
    assert [(x.tenant_id, x.queue) for x in q.list(tenant_id="a%", queue="x", kind="k", status="pending").runs] == [("a%", "x")]  # noqa: E501  # fmt: skip
    assert q.list(kind="_").runs == q.list(status=RunStatus.DONE).runs == ()
    with pytest.raises(InvalidRun, match="status"):
        q.list(status="running")


def test_lists_of_one_tenant_have_no_others(q):
    q.enqueue_many(NewRun(kind="k", tenant_id=f"t{n % 3}", input=n) for n in range(30))
    got, cursor = [], None
    while True:
        page = q.list(tenant_id="t1", limit=4, cursor=cursor)
        got += [x.tenant_id for x in page.runs]
        if (cursor := page.cursor) is None:
            break
    assert got == ["t1"] * 10


def test_stats_count_each_lane(q):
    q.enqueue_many([NewRun(kind="k", tenant_id="t"), NewRun(kind="k", tenant_id="t", delay=99)])
    q.enqueue_many(NewRun(kind="j", tenant_id="t", queue="b", max_attempts=1) for _ in range(4))
    done, dead, cancelled, _ = (x.lease for x in q.claim("w", queues=["b"], limit=4))
    q.complete(done)
    q.fail(dead, "x")
    q.settle_cancelled(cancelled)
    b, default = q.stats()
    assert (default.queue, default.kind, default.pending, default.due, default.leased) == ("default", "k", 2, 1, 0)
    assert 0 <= default.oldest_due < 30
    assert (b.pending, b.due, b.leased, b.done, b.dead, b.cancelled) == (0, 0, 1, 1, 1, 1)
    assert b.oldest_due is None


def test_explain_names_the_rule(q, facts):
    def rule(run):
        return q.explain(run.id).rule

    scheduled = q.enqueue("k", tenant_id="t", delay=100)
    ahead = q.enqueue("k", tenant_id="t")
    waiting = q.enqueue("k", tenant_id="t")
    assert (rule(scheduled), rule(waiting)) == ("scheduled", "waiting")
    assert "behind 1 " in q.explain(waiting.id).detail
    q.pause(kind="k")
    assert rule(waiting) == "paused"
    q.resume(kind="k")
    q.pause()
    assert (rule(waiting), rule(scheduled)) == ("paused", "paused")
    q.resume()
    [claimed] = q.claim("worker-7")
    assert claimed.run.id == ahead.id
    assert rule(ahead) == "leased"
    assert "worker-7" in q.explain(ahead.id).detail
    q.cancel(ahead.id)
    assert "asked to stop" in q.explain(ahead.id).detail
    expire(facts, claimed.lease)
    assert rule(ahead) == "lease_expired"
    q.reap()
    assert rule(ahead) == "ended"
    failing = claim_one(q)
    q.fail(failing.lease, "x", delay=77)
    assert q.explain(failing.run.id).detail.endswith("after attempt 1 failed")


def test_explain_quotes_the_error_of_a_dead_run_and_the_reason_of_a_cancel(q):
    q.enqueue("k", tenant_id="t")
    dead = claim_one(q)
    q.fail(dead.lease, ValueError("no such order " + "x" * 5000), retry=False)
    detail = q.explain(dead.run.id).detail
    assert "ValueError: no such order xxx" in detail
    assert len(detail) < 700
    cancelled = q.enqueue("k", tenant_id="t")
    q.cancel(cancelled.id, "wrong order")
    assert q.explain(cancelled.id).detail.endswith(": wrong order")
    silent = q.enqueue("k", tenant_id="t")
    q.cancel(silent.id)
    done = q.enqueue("k", tenant_id="t")
    q.complete(claim_one(q).lease)
    for run in (silent, done):
        assert q.explain(run.id).detail.endswith("UTC")


def test_explain_says_what_is_paused_and_why(q):
    run = q.enqueue("k", tenant_id="t")
    q.pause(kind="k", reason="the provider is down")
    q.pause(kind="other", reason="nothing to do with it")
    assert q.explain(run.id).detail == "the kind 'k' in the queue 'default' is paused: the provider is down"
    q.pause()
    assert q.explain(run.id).detail == "the queue 'default' is paused"
    q.resume()
    q.resume(kind="k")
    assert "no worker that handles the kind 'k'" in q.explain(run.id).detail


def test_explain_looks_at_a_hot_run_once(q):
    """Between two looks the run could move, and the answer would mix both."""
    run = q.enqueue("k", tenant_id="t")
    seen = []

    def note(connection, cursor, statement, *rest):
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        q.explain(run.id)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert sum("agent_runs" in statement for statement in seen) == 1, seen


def test_tenants_do_not_see_each_other(q):
    mine = q.enqueue("k", {"secret": 1}, tenant_id="a", idempotency_key="x")
    yours = q.enqueue("k", {"secret": 2}, tenant_id="b", idempotency_key="x")
    assert mine.id != yours.id
    assert q.list(tenant_id="a").runs == (mine,)
    for read in (q.get, q.events, q.explain, q.cancel, q.retry):
        with pytest.raises(LookupError):
            read(yours.id, tenant_id="a")
    assert q.get(yours.id).status is RunStatus.PENDING
    assert q.cancel(yours.id, tenant_id="b").status is RunStatus.CANCELLED
