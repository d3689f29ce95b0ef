"""Shares measured in what runs took, not in how many there were."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import text
from support.tools import age

from runqueue import InvalidRun, LeaseLost, NewRun, PluginError, RunQueue

SECONDS = {"fairness": {"charge": "seconds"}}
SPENT = {"fairness": {"charge": "spent"}}


def enqueue(queue, **waiting):
    queue.enqueue_many(NewRun(kind="k", tenant_id=name) for name, n in waiting.items() for _ in range(n))


def usage(queue):
    return {x.tenant_id: x.usage for x in queue.tenants()}


def took(engine, lease, seconds):
    """Let a lease have begun so long ago."""
    begun = text(
        "update runqueue.agent_runs set leased_at = clock_timestamp() - make_interval(secs => :n) where id = :id"
    )
    with engine.begin() as connection:
        connection.execute(begun, {"n": seconds, "id": lease.run_id})


def test_run_seconds_are_shared_though_one_tenants_runs_are_ten_times_as_long(make, engine):
    queue = make("fairness", **SECONDS)
    enqueue(queue, slow=100, quick=400)
    seconds, had = {"slow": 100.0, "quick": 10.0}, Counter()
    for _ in range(110):
        for one in queue.claim("w", limit=2):
            took(engine, one.lease, seconds[one.run.tenant_id])
            queue.complete(one.lease)
            had[one.run.tenant_id] += seconds[one.run.tenant_id]
    assert abs(had["slow"] - had["quick"]) <= 400, had


@pytest.mark.slow
def test_weights_count_in_seconds_too(make, engine):
    queue = make("fairness", **SECONDS)
    queue.set_tenant("heavy", weight=3)
    enqueue(queue, heavy=300, light=300)
    had = Counter()
    for _ in range(100):
        for one in queue.claim("w", limit=2):
            took(engine, one.lease, 10)
            queue.complete(one.lease)
            had[one.run.tenant_id] += 1
    assert had["heavy"] / had["light"] == pytest.approx(3, rel=0.15)


def test_runs_in_flight_count_before_they_are_charged(make):
    queue = make("fairness", **SECONDS)
    enqueue(queue, a=40, b=40)
    assert Counter(x.run.tenant_id for _ in range(4) for x in queue.claim("w", limit=5)) == {"a": 10, "b": 10}


@pytest.mark.slow
def test_what_runs_report_as_spent_is_shared(make, engine):
    queue = make("fairness", **SPENT)
    enqueue(queue, dear=60, cheap=400)
    price, had = {"dear": 50.0, "cheap": 5.0}, Counter()
    for _ in range(120):
        for one in queue.claim("w", limit=2):
            with queue.transaction(one.lease) as tx:
                tx.spend(price[one.run.tenant_id] / 2)
                tx.spend(price[one.run.tenant_id] / 2)
            queue.complete(one.lease)
            had[one.run.tenant_id] += price[one.run.tenant_id]
    assert abs(had["dear"] - had["cheap"]) <= 200, had


@pytest.mark.parametrize("end", ["complete", "release", "fail", "expire", "cancel"])
def test_every_end_of_a_lease_is_charged_once(make, engine, policy, end):
    queue = make("fairness", **SECONDS)
    queue.enqueue("k", tenant_id="a", max_attempts=1)
    [one] = queue.claim("w")
    took(engine, one.lease, 40)
    match end:
        case "fail":
            queue.fail(one.lease, "x", retry=False)
        case "cancel":
            queue.cancel(one.run.id)
            queue.settle_cancelled(one.lease)
        case "expire":
            age(engine, one.run.id)
            queue.reap() if policy == "reaper" else queue.claim("w")
        case _:
            getattr(queue, end)(one.lease)
    assert usage(queue)["a"] == pytest.approx(40, abs=3)
    if end == "complete":
        queue.complete(one.lease)
    else:
        with pytest.raises(LeaseLost):
            queue.complete(one.lease)
    assert usage(queue)["a"] == pytest.approx(40, abs=3)


def test_a_cancel_of_a_run_that_waits_is_not_charged_for_its_last_lease(make, engine):
    queue = make("fairness", **SECONDS)
    run = queue.enqueue("k", tenant_id="a")
    [one] = queue.claim("w")
    took(engine, one.lease, 40)
    queue.release(one.lease, delay=60)
    queue.cancel(run.id)
    assert usage(queue)["a"] == pytest.approx(40, abs=3)


def test_half_of_what_was_had_is_forgotten_in_a_half_life(make, engine):
    queue = make("fairness", **SECONDS)
    queue.set_rule("fairness.half_life", 100)
    enqueue(queue, a=2)
    for _ in range(2):
        [one] = queue.claim("w")
        took(engine, one.lease, 40)
        queue.complete(one.lease)
        with engine.begin() as connection:
            connection.execute(text("update runqueue.agent_run_tenants set used_at = used_at - interval '100 s'"))
    assert usage(queue)["a"] == pytest.approx(60, abs=3)


def test_a_tenant_that_was_idle_for_ages_has_no_underflow(make, engine):
    queue = make("fairness", **SECONDS)
    enqueue(queue, a=2)
    [one] = queue.claim("w")
    queue.complete(one.lease)
    with engine.begin() as connection:
        connection.execute(text("update runqueue.agent_run_tenants set used_at = used_at - interval '40 years'"))
    [one] = queue.claim("w")
    queue.complete(one.lease)


def test_a_charge_that_fails_fails_nothing_else(make, engine):
    queue = make("fairness", **SECONDS)
    run = queue.enqueue("k", tenant_id="a")
    [one] = queue.claim("w")
    with engine.begin() as connection:
        connection.execute(text("alter table runqueue.agent_run_tenants add constraint no check (usage < 0)"))
    queue.complete(one.lease)
    assert queue.get(run.id).status == "done"
    assert queue.core.ctx.hooks.errors == {"fairness": 1}


def test_wrong_charge_is_refused_at_the_start(engine):
    with pytest.raises(PluginError, match=r"'fairness'.*charge.*must be"):
        RunQueue(engine, plugins=["fairness"], plugin_options={"fairness": {"charge": "days"}})
    with pytest.raises(PluginError, match=r"'fairness' has no option 'chrage'; did you mean 'charge'"):
        RunQueue(engine, plugins=["fairness"], plugin_options={"fairness": {"chrage": "count"}})


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), "5", True])
def test_a_wrong_amount_is_refused(make, amount):
    queue = make("fairness", **SPENT)
    queue.enqueue("k", tenant_id="a")
    [one] = queue.claim("w")
    with pytest.raises(InvalidRun, match="amount"), queue.transaction(one.lease) as tx:
        tx.spend(amount)
    queue.complete(one.lease)
