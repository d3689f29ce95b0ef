"""Caps on runs in flight are exact, whoever claims at the same time, and stop nobody else."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from fairness.flights import most_in_flight
from races.forced import background, race, result
from sqlalchemy import text
from support.tools import age

from runqueue import LeaseLost, NewRun
from runqueue.operations import claim as operations

CLAIMERS = 8
KINDS = [operations.Kind("k")]


def enqueue(queue, **waiting):
    queue.enqueue_many(NewRun(kind="k", tenant_id=name) for name, n in waiting.items() for _ in range(n))


def know_the_rules(*queues):
    """The first claim of an install states its rules, and those of others wait for its commit."""
    for queue in queues:
        assert queue.claim("w", kinds=["none"]) == []


def claim_in(connection, queue, batch):
    """A claim whose transaction stays open."""
    return operations.claim(connection, queue.core.ctx, "w", ["default"], batch, KINDS, 60.0)


def test_eight_claimers_at_once_fill_the_cap_and_not_more(make, fair):
    enqueue(fair, a=50)
    fair.set_tenant("a", cap=5)
    queues = [make() for _ in range(CLAIMERS)]
    know_the_rules(*queues)
    found = race(fair.engine, CLAIMERS, lambda n: len(queues[n].claim("w", limit=3)))
    assert sum(found) <= 5
    while sum(found) < 5:
        found.append(len(fair.claim("w", limit=3)))
    assert fair.claim("w", limit=3) == []
    assert most_in_flight(fair.engine)["a"] == 5


def test_who_claims_meanwhile_gets_others_runs_and_does_not_wait(make, fair, engine):
    enqueue(fair, a=10, b=10)
    fair.set_tenant("a", cap=2)
    other = make()
    know_the_rules(fair, other)
    with engine.connect() as connection:
        connection.begin()
        first = claim_in(connection, fair, 4)
        assert Counter(x.run.tenant_id for x in first) == {"a": 2, "b": 2}
        second = result(background(other.claim, "w", limit=6))
        assert {x.run.tenant_id for x in second} == {"b"}
        connection.rollback()
    assert Counter(x.run.tenant_id for x in other.claim("w", limit=4)).get("a") == 2


def test_the_default_cap_is_for_tenants_without_their_own(fair):
    enqueue(fair, a=9, b=9, c=9)
    fair.set_rule("fairness.cap", 2)
    fair.set_tenant("b", cap=4)
    fair.set_tenant("c", cap=0)
    found = Counter(x.run.tenant_id for _ in range(5) for x in fair.claim("w", limit=9))
    assert found == {"a": 2, "b": 4}


def test_caps_can_be_raised_lowered_and_lifted_at_run_time(fair):
    enqueue(fair, a=20)
    fair.set_tenant("a", cap=2)
    held = fair.claim("w", limit=9)
    assert len(held) == 2
    fair.set_tenant("a", cap=3)
    held += fair.claim("w", limit=9)
    assert len(held) == 3
    fair.set_tenant("a", cap=1)
    fair.complete(held.pop().lease)
    assert fair.claim("w", limit=9) == []
    for one in held:
        fair.complete(one.lease)
    assert len(fair.claim("w", limit=9)) == 1
    fair.set_tenant("a", cap=None)
    assert len(fair.claim("w", limit=9)) == 9


@pytest.mark.parametrize("end", ["complete", "fail", "release", "settle_cancelled", "dead"])
def test_every_end_of_a_lease_makes_room_for_one(fair, end):
    enqueue(fair, a=10)
    fair.set_tenant("a", cap=1)
    for _ in range(3):
        [one] = fair.claim("w", limit=5)
        assert fair.claim("w", limit=5) == []
        match end:
            case "complete" | "release":
                getattr(fair, end)(one.lease)
            case "fail" | "dead":
                fair.fail(one.lease, "x", retry=end == "fail", delay=60 if end == "fail" else None)
            case "settle_cancelled":
                fair.cancel(one.run.id)
                fair.settle_cancelled(one.lease)


def test_a_lost_run_of_a_tenant_at_its_cap_is_recovered(fair, engine):
    enqueue(fair, a=3)
    fair.set_tenant("a", cap=1)
    [lost] = fair.claim("w", limit=5)
    assert fair.claim("w", limit=5) == []
    age(engine, lost.run.id)
    fair.reap()
    [again] = fair.claim("w", limit=5)
    assert fair.claim("w", limit=5) == []
    with pytest.raises(LeaseLost):
        fair.complete(lost.lease)
    assert most_in_flight(engine)["a"] == 1
    fair.complete(again.lease)


def test_a_stale_release_makes_no_room(fair, engine):
    enqueue(fair, a=5)
    fair.set_tenant("a", cap=2)
    first, second = fair.claim("w", limit=5)
    age(engine, first.run.id)
    fair.reap()
    [third] = fair.claim("w", limit=5)
    for verb in (fair.release, fair.complete):
        with pytest.raises(LeaseLost):
            verb(first.lease)
    assert fair.claim("w", limit=5) == []
    fair.complete(second.lease)
    fair.complete(second.lease)
    assert len(fair.claim("w", limit=5)) == 1
    fair.complete(third.lease)


@pytest.mark.parametrize("options", [{}, {"fairness": {"charge": "seconds"}}], ids=["count", "seconds"])
def test_caps_hold_through_a_storm_of_everything(make, fair, engine, options):
    caps = {"a": 1, "b": 3, "c": 5}
    enqueue(fair, free=60, **dict.fromkeys(caps, 60))
    for name, cap in caps.items():
        fair.set_tenant(name, cap=cap)
    queues = [make("fairness", **options) for _ in range(CLAIMERS)]
    done = Counter()
    stop = threading.Event()

    def work(n):
        dice, queue, held = random.Random(n), queues[n], []
        for _ in range(40):
            if stop.is_set():
                return
            held += queue.claim("w", limit=dice.randint(1, 4))
            dice.shuffle(held)
            for one in [held.pop() for _ in range(dice.randint(0, len(held)))]:
                act = dice.choice(["complete", "complete", "fail", "release", "expire", "cancel"])
                done[act] += 1
                if act == "expire":
                    age(engine, one.run.id)
                    queue.reap()
                elif act == "cancel":
                    queue.cancel(one.run.id)
                    queue.settle_cancelled(one.lease)
                elif act == "fail":
                    queue.fail(one.lease, "x", delay=0)
                else:
                    getattr(queue, act)(one.lease)

    errors = [x for x in race(engine, CLAIMERS, work) if isinstance(x, BaseException)]
    assert not [x for x in errors if not isinstance(x, (LeaseLost, AssertionError))]
    most = most_in_flight(engine)
    assert {name: most[name] for name in caps} == caps
    assert min(done.values()) >= 5, done


def test_a_tenant_at_its_cap_with_a_backlog_at_the_head_keeps_nobody_waiting(fair, engine):
    enqueue(fair, a=500)
    with engine.begin() as connection:
        connection.execute(text("update runqueue.agent_runs set priority = 9, available_at = now() - interval '1 d'"))
    fair.set_tenant("a", cap=1)
    enqueue(fair, b=5)
    assert Counter(x.run.tenant_id for x in fair.claim("w", limit=20)) == {"a": 1, "b": 5}
