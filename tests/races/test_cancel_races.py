"""Cancel against every other verb, in every order, and at random."""

from __future__ import annotations

import itertools
import random

import pytest
from conformance.driver import claim_one, expire
from races.forced import background, result, uncommitted, wait_blocked

from runqueue import LeaseLost, RunQueue, RunStatus
from runqueue.failures import Described
from runqueue.operations import claim as claim_operation
from runqueue.operations import inspect, maintain, settle

DONE, DEAD, CANCELLED = RunStatus.DONE, RunStatus.DEAD, RunStatus.CANCELLED

VERBS = {
    "complete": lambda c, ctx, lease: settle.complete_many(c, ctx, [(lease, None)]),
    "fail": lambda c, ctx, lease: settle.fail(c, ctx, lease, Described("e", "x")),
    "last fail": lambda c, ctx, lease: settle.fail(c, ctx, lease, Described("e", "x"), retry=False),
    "release": lambda c, ctx, lease: settle.release(c, ctx, lease),
    "reap": lambda c, ctx, lease: maintain.reap(c, ctx, 10),
    "takeover": lambda c, ctx, lease: claim_operation.claim(c, ctx, "w", ["default"], 1, None, 60),
}


def context(queue, engine, verb):
    policy = "takeover" if verb == "takeover" else "reaper"
    return RunQueue(engine, claim=policy, settings=queue.settings).core.ctx


@pytest.fixture
def lease(queue, facts):
    queue.enqueue("k", tenant_id="t")
    lease = claim_one(queue).lease
    expire(facts, lease)
    return lease


def cancels(queue, run_id):
    return [x.type for x in queue.events(run_id)].count("run.cancelled")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_waited_for_the_cancel_obeys_it(queue, engine, lease, verb):
    ctx = context(queue, engine, verb)
    with uncommitted(engine, lambda c: inspect.cancel(c, ctx, lease.run_id)) as cancel:
        if verb in {"reap", "takeover"}:  # they pass by a locked row, and come again
            with engine.begin() as connection:
                VERBS[verb](connection, ctx, lease)
            cancel.commit()
            with engine.begin() as connection:
                VERBS[verb](connection, ctx, lease)
        else:
            writing = background(_in_transaction, engine, ctx, verb, lease)
            wait_blocked(engine)
            cancel.commit()
            result(writing)
    run = queue.get(lease.run_id)
    assert run.status is (DONE if verb == "complete" else CANCELLED)
    assert run.cancel_requested_at is not None
    assert cancels(queue, run.id) == (0 if verb == "complete" else 1)
    assert queue.claim("w", limit=5) == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_cancel_that_waited_for_a_verb_sees_its_outcome(queue, engine, lease, verb):
    ctx = context(queue, engine, verb)
    with uncommitted(engine, lambda c: VERBS[verb](c, ctx, lease)) as first:
        cancelling = background(queue.cancel, lease.run_id)
        wait_blocked(engine)
        first.commit()
    run = result(cancelling)
    expected = {"complete": DONE, "last fail": DEAD, "takeover": RunStatus.LEASED}.get(verb, CANCELLED)
    assert run.status is expected
    assert queue.get(run.id) == run
    assert (run.cancel_requested_at is None) == (verb in {"complete", "last fail"})


def _in_transaction(engine, ctx, verb, lease):
    with engine.begin() as connection:
        return VERBS[verb](connection, ctx, lease)


@pytest.mark.parametrize("commit", [True, False])
def test_a_cancel_that_waited_for_the_claim_asks_its_holder(queue, engine, commit):
    run = queue.enqueue("k", tenant_id="t")
    with uncommitted(engine) as claiming:
        [claimed] = claim_operation.claim(claiming, queue.core.ctx, "w", ["default"], 1, None, 60)
        cancelling = background(queue.cancel, run.id)
        wait_blocked(engine)
        claiming.commit() if commit else claiming.rollback()
    assert result(cancelling).status is (RunStatus.LEASED if commit else CANCELLED)
    if commit:
        assert queue.heartbeat([claimed.lease])[0].cancel_requested
        queue.settle_cancelled(claimed.lease)
    assert cancels(queue, run.id) == 1


def test_a_claim_passes_by_a_run_that_is_being_cancelled(queue, engine):
    run = queue.enqueue("k", tenant_id="t")
    with uncommitted(engine, lambda c: inspect.cancel(c, queue.core.ctx, run.id)) as cancelling:
        assert queue.claim("w") == []
        cancelling.commit()
    assert queue.claim("w") == []
    assert queue.get(run.id).status is CANCELLED


def test_two_cancels_at_once_are_one(queue, engine, lease):
    with uncommitted(engine, lambda c: inspect.cancel(c, queue.core.ctx, lease.run_id, "first")) as first:
        second = background(queue.cancel, lease.run_id, "second")
        wait_blocked(engine)
        first.commit()
    assert result(second).cancel_reason == "first"
    assert [x.type for x in queue.events(lease.run_id)] == ["run.cancel_requested"]


@pytest.mark.parametrize("when", ["before expiry", "after expiry", "attempts used up"])
def test_a_run_whose_worker_died_is_cancelled_by_whoever_comes_next(queue, policy, facts, when):
    run = queue.enqueue("k", tenant_id="t", max_attempts=1 if when == "attempts used up" else 3, idempotency_key="x")
    dead = claim_one(queue).lease
    if when == "after expiry":
        expire(facts, dead)
    queue.cancel(run.id)
    if when != "after expiry":
        expire(facts, dead)
    if policy == "takeover":
        assert queue.claim("w", limit=5) == []
    else:
        assert queue.reap().cancelled == 1
    ended = queue.wait(run.id, 5)
    assert (ended.status, ended.finished_at is None) == (CANCELLED, False)
    assert cancels(queue, run.id) == 1
    assert queue.claim("w", limit=5) == []


def test_every_order_of_cancel_and_the_life_of_a_run_ends_once(queue, facts):
    """All ways to put one cancel among claim, expiry, sweep, claim and an end."""
    ends = ("complete", "fail", "release", "settle_cancelled")
    for end, lost, at in itertools.product(ends, (False, True), range(5)):
        run = queue.enqueue("k", tenant_id="t", max_attempts=2)
        leases = []
        steps = [
            lambda leases=leases: leases.extend(x.lease for x in queue.claim("w")),
            lambda leases=leases, lost=lost: lost and leases and expire(facts, leases[-1]),
            queue.reap,
            lambda leases=leases: leases.extend(x.lease for x in queue.claim("w")),
            lambda leases=leases, end=end: leases and _end(queue, end, leases[-1]),
        ]
        steps.insert(at, lambda run=run: queue.cancel(run.id))
        for step in steps:
            step()
        queue.cancel(run.id)
        got = queue.get(run.id)
        assert got.status in ({DONE, CANCELLED} if end == "complete" else {CANCELLED}), (end, lost, at)
        assert queue.claim("w", limit=5) == [], (end, lost, at)


def _end(queue, end, lease):
    try:
        queue.fail(lease, "x") if end == "fail" else getattr(queue, end)(lease)
    except LeaseLost:
        assert queue.get(lease.run_id).status is CANCELLED


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(x, marks=pytest.mark.slow) for x in range(2, 6))])
def test_random_schedules_end_once_and_never_run_after_a_cancel(queue, facts, seed):
    dice = random.Random(seed)
    for _ in range(50):
        run = queue.enqueue("k", tenant_id="t", max_attempts=dice.randint(1, 3))
        leases, asked = [], False
        for _ in range(dice.randint(3, 9)):
            step = dice.choice(["claim", "cancel", "expire", "reap", "end", "stale end"])
            if step == "cancel":
                asked = queue.cancel(run.id).cancel_requested_at is not None  # not where it came too late
            elif step == "claim":
                claimed = queue.claim("w", limit=5)
                assert not (claimed and asked), "a run was claimed after its cancel was confirmed"
                leases += [x.lease for x in claimed]
            elif step == "reap":
                queue.reap()
            elif step == "expire" and leases and queue.get(run.id).status is RunStatus.LEASED:
                expire(facts, leases[-1])
            elif leases and step in {"end", "stale end"}:
                _try(queue, dice.choice(["complete", "fail", "release", "settle_cancelled"]), dice.choice(leases))
        if not queue.cancel(run.id).status.terminal:
            expire(facts, leases[-1])
            queue.reap()
            queue.claim("w", limit=5)
        got = queue.get(run.id)
        assert got.status.terminal
        assert not (asked and got.status is DEAD), "a run that was asked to stop died instead"


def _try(queue, verb, lease):
    before = queue.get(lease.run_id)
    try:
        queue.fail(lease, "x") if verb == "fail" else getattr(queue, verb)(lease)
    except LeaseLost:
        assert queue.get(lease.run_id) == before
    else:
        if before.fencing_token != lease.fencing_token:
            assert queue.get(lease.run_id) == before
