"""What a claim takes, in which order, and what it gives."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from conformance.driver import claim_one

from runqueue import InvalidRun, NewRun, RunStatus

DAY = datetime(2024, 1, 1, tzinfo=UTC)


def test_attempts_and_token_rise_at_the_claim(q, facts):
    run = q.enqueue("k", {"x": 1}, tenant_id="t")
    claimed = claim_one(q, "host:1:boot")
    assert (claimed.run.id, claimed.run.input) == (run.id, {"x": 1})
    assert (claimed.run.status, claimed.run.attempts, claimed.run.fencing_token) == (RunStatus.LEASED, 1, 1)
    assert (claimed.lease.run_id, claimed.lease.fencing_token) == (run.id, 1)
    assert claimed.lease.locked_until == claimed.run.locked_until
    assert claimed.run.locked_by == "host:1:boot"
    assert 55 < claimed.time_left <= 60
    assert claimed.checkpoint is None
    assert q.get(run.id) == claimed.run


def test_a_leased_run_is_not_claimed_again(q):
    q.enqueue("k", tenant_id="t")
    claim_one(q)
    assert q.claim("w", limit=10) == []


def test_the_lease_is_as_long_as_asked(q):
    q.enqueue("k", tenant_id="t")
    assert 899 < claim_one(q, lease=timedelta(minutes=15)).time_left <= 900


def test_only_wanted_queues_and_kinds(q):
    made = {
        (lane, kind): q.enqueue(kind, tenant_id="t", queue=lane).id for lane in ("a", "b", "c") for kind in ("x", "y")
    }
    assert q.claim("w", limit=10) == []
    assert q.claim("w", queues=["a"], kinds=[], limit=10) == []
    assert [x.run.id for x in q.claim("w", queues=["a"], kinds=["x", "z"], limit=10)] == [made["a", "x"]]
    assert {x.run.id for x in q.claim("w", queues=["a", "b"], limit=10)} == {made[k] for k in (("a", "y"), ("b", "x"), ("b", "y"))}  # noqa: E501  # fmt: skip
    assert {x.run.queue for x in q.claim("w", queues=["a", "b", "c"], kinds=["y"], limit=10)} == {"c"}


def test_a_lane_named_twice_counts_once(q):
    q.enqueue_many([NewRun(kind="k", tenant_id="t") for _ in range(6)])
    assert len(q.claim("w", queues=["default", "default"], limit=3)) == 3
    assert len(q.claim("w", kinds=["k", "k"], limit=3)) == 3


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, 2.5])
def test_an_odd_limit_is_refused(q, limit):
    with pytest.raises(InvalidRun, match="limit"):
        q.claim("w", limit=limit)


@pytest.mark.parametrize("kinds", [None, ["a", "b", "c"]])
def test_priority_then_time_then_age_across_queues_and_kinds(q, kinds):
    order = random.Random(7)
    new = [
        NewRun(
            kind=order.choice("abc"), tenant_id="t", queue=order.choice(["q1", "q2"]), priority=order.randint(-2, 2),
            available_at=DAY + timedelta(hours=order.randint(0, 3)),
        )
        for _ in range(60)
    ]  # fmt: skip
    runs = q.enqueue_many(new)
    expected = sorted(runs, key=lambda run: (-run.priority, run.available_at, run.id))
    got = []
    while batch := q.claim("w", queues=["q1", "q2"], kinds=kinds, limit=7):
        got += [claimed.run.id for claimed in batch]
    assert got == [run.id for run in expected]


def test_what_is_due_later_does_not_hide_what_is_due_now(q):
    q.enqueue_many(NewRun(kind="k", tenant_id="t", priority=9, delay=3600) for _ in range(20))
    due = q.enqueue("k", tenant_id="t", priority=-9)
    assert claim_one(q).run.id == due.id


def test_two_claimers_never_share_a_run(q, fleet, policy):
    q.enqueue_many(NewRun(kind="k", tenant_id="t") for _ in range(30))
    other, taken = fleet(policy), []
    while batch := q.claim("w", limit=4) + other.claim("w", limit=4):
        taken += [x.run.id for x in batch]
    assert len(taken) == len(set(taken)) == 30


def test_a_paused_queue_gives_nothing_and_running_runs_go_on(q):
    q.enqueue_many(NewRun(kind=kind, tenant_id="t", queue=lane) for lane in "ab" for kind in "xy")
    lanes = {"queues": ["a", "b"], "limit": 10}
    before = q.claim("w", queues=["a"])
    q.pause("a", reason="deploy")
    assert {x.run.queue for x in q.claim("w", kinds=["x"], **lanes)} == {"b"}
    assert [x.renewed for x in q.heartbeat([x.lease for x in before])] == [True]
    q.complete(before[0].lease)
    q.pause("b", "y")
    assert q.claim("w", **lanes) == []
    q.resume("b", "y")
    assert [(x.run.queue, x.run.kind) for x in q.claim("w", **lanes)] == [("b", "y")]
    q.pause("a")  # again
    q.resume("a")
    assert [x.run.queue for x in q.claim("w", **lanes)] == ["a"]


def test_an_expired_run_of_a_paused_queue_waits(q, facts):
    from conformance.driver import expire

    q.enqueue("k", tenant_id="t")
    expire(facts, claim_one(q).lease)
    q.pause()
    q.reap()
    assert q.claim("w", limit=10) == []
    q.resume()
    assert claim_one(q).run.attempts == 2


def test_the_handlers_promise_is_recorded_with_the_run(q, facts):
    q.handler("once", on_lost="fail", timeout=30, cancel_grace=5)(lambda run: None)
    run = q.enqueue("once", tenant_id="t")
    claim_one(q, kinds=["once"])
    row = facts.row(run.id)
    assert row["on_lost"] == "fail"
    [[left]] = facts.sql("select extract(epoch from deadline_at - clock_timestamp()) from runqueue.agent_runs")
    assert 90 < left <= 95  # timeout, grace, and one lease


def test_a_heartbeat_cannot_pass_the_deadline(q, facts):
    run = q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    facts.sql(
        "update runqueue.agent_runs set deadline_at = clock_timestamp() + interval '5 s' where id = :id", id=run.id
    )
    [answer] = q.heartbeat([lease])
    assert answer.renewed
    assert answer.time_left <= 5
