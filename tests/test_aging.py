"""Aging: waiting raises a run's rank, linearly; the bound on what may overtake it holds exactly."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from races.forced import race
from sqlalchemy import text

from runqueue import InvalidRun, NewRun, RunQueue, Settings

STEP = 60.0


@pytest.fixture
def queue(engine, policy):
    return RunQueue(engine, claim=policy, plugins=["aging"], settings=Settings(retry_base=0))


def clock(queue):
    with queue.engine.connect() as connection:
        return connection.execute(text("select clock_timestamp()")).scalar_one()


def rank(run, step=STEP):
    return run.available_at.timestamp() - run.priority * step


def drain(queue, batch):
    found = []
    while claimed := queue.claim("w", limit=batch, kinds=["k", "other"]):
        found += [x.run for x in claimed]
    return found


@pytest.mark.parametrize("batch", [1, 7, 50])
def test_runs_are_served_by_rank_over_all_priorities_and_kinds(queue, batch):
    dice, now = random.Random(batch), clock(queue)
    runs = queue.enqueue_many(
        NewRun(
            kind=dice.choice(["k", "other"]),
            tenant_id="t",
            priority=dice.randint(-3, 9),
            available_at=now - timedelta(seconds=dice.uniform(0, 900)),
        )
        for _ in range(150)
    )
    queue.enqueue_many(NewRun(kind="k", tenant_id="t", priority=n, delay=600) for n in range(20))
    assert [x.id for x in drain(queue, batch)] == [x.id for x in sorted(runs, key=rank)]


@pytest.mark.parametrize("batch", [1, 7])
def test_runs_that_became_due_together_are_served_by_age(queue, batch):
    now = clock(queue) - timedelta(seconds=1000)
    runs = queue.enqueue_many(
        NewRun(kind=kind, tenant_id="t", priority=n % 3, available_at=now) for n in range(15) for kind in ("k", "other")
    )
    assert [x.id for x in drain(queue, batch)] == [x.id for x in sorted(runs, key=lambda run: (rank(run), run.id))]


def test_a_low_priority_under_a_constant_flood_starts_when_it_was_predicted_to(queue):
    """One run of priority 9 becomes due each second, and one is served each second: of priority 0 there are some."""
    flood, low, now = 900, (0, 100, 300), clock(queue) - timedelta(seconds=1000)
    queue.enqueue_many(
        NewRun(kind="k", tenant_id="t", priority=9, available_at=now + timedelta(seconds=n)) for n in range(flood)
    )
    waiting = queue.enqueue_many(
        NewRun(kind="k", tenant_id="t", available_at=now + timedelta(seconds=n, milliseconds=500)) for n in low
    )
    order = [x.id for x in drain(queue, 20)]
    for ahead, (run, due) in enumerate(zip(waiting, low, strict=True)):
        predicted = due + 9 * STEP + ahead  # all of the flood that was due 9 steps later, and the others of its kind
        assert order.index(run.id) == pytest.approx(predicted, rel=0.05)


def test_nothing_that_comes_later_than_the_bound_overtakes(queue):
    now = clock(queue) - timedelta(seconds=1000)
    old = queue.enqueue("k", tenant_id="t", priority=-5, available_at=now)
    bound = timedelta(seconds=(100 - -5) * STEP)
    late = queue.enqueue("k", tenant_id="t", priority=100, available_at=now + timedelta(seconds=1))
    with queue.engine.begin() as connection:
        shift = text("update runqueue.agent_runs set available_at = available_at - make_interval(secs => :s)")
        connection.execute(shift, {"s": bound.total_seconds()})
        later = text(
            "update runqueue.agent_runs set available_at = available_at + make_interval(secs => :s) where id = :i"
        )
        connection.execute(later, {"s": bound.total_seconds(), "i": late.id})
    assert [x.id for x in drain(queue, 1)] == [old.id, late.id]


def test_the_step_can_be_changed_while_claims_go_on(queue, policy):
    now = clock(queue) - timedelta(seconds=1000)
    dice = random.Random(1)
    runs = queue.enqueue_many(
        NewRun(kind="k", tenant_id="t", priority=dice.randint(0, 9), available_at=now + timedelta(seconds=n))
        for n in range(200)
    )

    def claimer(n):
        own, found = RunQueue(queue.engine, claim=policy, plugins=["aging"]), []
        for turn in range(15):
            if n == 0:
                queue.set_rule("aging.step", 1 + turn)
            found += [x.run.id for x in own.claim("w", limit=5)]
        return found

    claimed = [x for found in race(queue.engine, 3, claimer) for x in found]
    assert len(claimed) == len(set(claimed))
    queue.set_rule("aging.step", 10)
    left = [x for x in runs if x.id not in set(claimed)]
    expected = [x.id for x in sorted(left, key=lambda x: rank(x, 10))]
    assert claimed
    assert [x.id for x in drain(queue, 7)] == expected


def test_without_weight_of_priority_the_oldest_comes_first(queue):
    queue.set_rule("aging.step", 0)
    now = clock(queue) - timedelta(seconds=100)
    runs = queue.enqueue_many(
        NewRun(kind="k", tenant_id="t", priority=-n, available_at=now - timedelta(seconds=n)) for n in range(10)
    )
    assert [x.id for x in drain(queue, 3)] == [x.id for x in reversed(runs)]


@pytest.mark.parametrize("value", [-1, "soon", float("nan"), True, [60]])
def test_a_wrong_step_is_refused_and_claims_go_on(queue, value):
    with pytest.raises(InvalidRun, match=r"aging\.step"):
        queue.set_rule("aging.step", value)
    run = queue.enqueue("k", tenant_id="t")
    assert [x.id for x in drain(queue, 1)] == [run.id]


def test_claimers_at_once_share_the_heads_without_loss(queue, policy):
    queue.enqueue_many(NewRun(kind="k", tenant_id="t", priority=n % 10) for n in range(300))

    def claimer(_):
        own, found = RunQueue(queue.engine, claim=policy, plugins=["aging"]), []
        for _ in range(200):
            found += [x.run.id for x in own.claim("w", limit=7)]
            if len(found) >= 300:
                break
        return found

    found = [x for one in race(queue.engine, 4, claimer) for x in one]
    assert len(found) == len(set(found)) == 300


def test_a_retried_run_keeps_its_rank_by_when_it_is_due_again(queue):
    first = queue.enqueue("k", tenant_id="t", priority=5)
    [one] = queue.claim("w")
    queue.fail(one.lease, "x", delay=0)
    second = queue.enqueue("k", tenant_id="t", priority=5)
    assert [x.id for x in drain(queue, 1)] == [first.id, second.id]
