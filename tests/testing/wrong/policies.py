"""Claim policies that break rules."""

from __future__ import annotations

from sqlalchemy import BigInteger, Uuid, bindparam, false, func, literal, null, or_, select, true, update

from runqueue.policies import Reaper, Takeover
from runqueue.statements.claim import expired_arm, pending_arm
from runqueue.statements.expiry import ending, expired_event, expired_status, lost_and_due, outcome_values
from runqueue.statements.journal import record
from runqueue.statements.parts import (
    CLOCK,
    LEASED,
    ONE,
    PENDING,
    STATEMENT_TIME,
    choose,
    ids_of,
    lost_delay,
    materialized,
)
from runqueue.testing import ClaimPolicySuite

NOT_DUE = "test_a_run_that_is_not_due_is_not_claimed"
TWICE = "test_no_run_is_claimed_twice"
LANES = "test_other_queues_and_kinds_are_left"
PAUSED = "test_a_paused_lane_gives_nothing"
LIMIT = "test_a_claim_keeps_its_limit"
LOCKED = "test_a_locked_run_holds_up_nobody"
COST = "test_a_claim_costs_its_batch"
RUNNING = "test_a_running_run_is_left_alone"
BACK = "test_a_lost_run_comes_back"
BACKOFF = "test_a_lost_run_waits_its_backoff"
USED_UP = "test_a_lost_run_without_attempts_left_ends_dead"
ONCE = "test_a_lost_run_that_may_not_be_repeated_ends_dead"
CANCELLED = "test_a_lost_run_that_was_asked_to_stop_ends_cancelled"
STALE = "test_a_stale_lease_cannot_write"
KILLED = "test_a_killed_worker_loses_no_run"
SWEEP_LIMIT = "test_a_sweep_keeps_its_limit"
SWEEP_AFTER = "test_a_sweep_begins_where_it_is_told"


class Plain(Reaper):
    """Right, if plain: pending runs of the lanes by a join."""

    name = "plain"
    due = lanes = limit = locks = skips = True
    limit_of_lane = False

    def arms(self):
        return (self.arm,)

    def arm(self, scope):
        runs, lanes = scope.t.runs, scope.lanes
        lane = (runs.c.queue == lanes.c.queue) & (runs.c.kind == lanes.c.kind)
        source = runs.join(lanes, lane) if self.lanes else runs
        rest = [lanes.c.deadline, lanes.c.on_lost] if self.lanes else [null().label("deadline"), literal("retry").label("on_lost")]  # noqa: E501  # fmt: skip
        found = select(runs.c.id, false().label("expired"), false().label("ends"), *rest).select_from(source)
        found = found.where(runs.c.status == PENDING).order_by(runs.c.priority.desc(), runs.c.available_at, runs.c.id)
        if self.due:
            found = found.where(runs.c.available_at <= STATEMENT_TIME)
        if self.limit:
            found = found.limit(scope.limit)
        if self.locks:
            found = found.with_for_update(of=runs, skip_locked=self.skips)
        return materialized(found, "due")


class TestPlain(ClaimPolicySuite):
    claim = Plain()
    fails = ()


class IgnoresDue(Plain):
    due = False


class TestIgnoresDue(ClaimPolicySuite):
    claim = IgnoresDue()
    fails = (NOT_DUE, BACKOFF)


class IgnoresLanes(Plain):
    lanes = False


class TestIgnoresLanes(ClaimPolicySuite):
    claim = IgnoresLanes()
    fails = (LANES, PAUSED, ONCE)


class IgnoresLimit(Plain):
    limit = False


class TestIgnoresLimit(ClaimPolicySuite):
    claim = IgnoresLimit()
    fails = (LIMIT, LOCKED)


class LimitsEachLane(Plain):
    """So many of each queue and kind."""

    def arm(self, scope):
        runs, lanes = scope.t.runs, scope.lanes
        lane = (
            select(runs.c.id)
            .where(runs.c.status == PENDING, runs.c.queue == lanes.c.queue, runs.c.kind == lanes.c.kind)
            .where(runs.c.available_at <= STATEMENT_TIME)
            .limit(scope.limit)
            .with_for_update(skip_locked=True)
            .lateral("lane")
        )
        found = select(lane.c.id, false().label("expired"), false().label("ends"), lanes.c.deadline, lanes.c.on_lost)
        return materialized(found.select_from(lanes.join(lane, true())), "due")


class TestLimitsEachLane(ClaimPolicySuite):
    claim = LimitsEachLane()
    fails = (LIMIT,)


class NoLock(Plain):
    locks = False


class TestNoLock(ClaimPolicySuite):
    claim = NoLock()
    fails = (TWICE, LOCKED)


class Waits(Plain):
    skips = False


class TestWaits(ClaimPolicySuite):
    claim = Waits()
    fails = (LOCKED,)


def sweep(t, *, limit=True, after=True, expired=True, token=0, cancels=True, never=False, backoff=True):
    """The sweep of the reaper, with a part missing."""
    runs = t.runs
    found = select(runs.c.id).where(runs.c.status == LEASED).order_by(runs.c.id).with_for_update(skip_locked=True)
    if never:
        found = found.where(false())
    if after:
        found = found.where(runs.c.id > bindparam("after", type_=Uuid))
    if expired:
        found = found.where(runs.c.locked_until <= STATEMENT_TIME)
    if limit:
        found = found.limit(bindparam("batch", type_=BigInteger))
    lost = materialized(found, "expired")
    values = outcome_values(t, expired_status(runs, PENDING))
    if not cancels:
        values["status"] = choose((ending(runs), literal("dead")), otherwise=PENDING)
    due = runs.c.updated_at + lost_delay(runs.c.attempts) if backoff else runs.c.updated_at
    moved = (
        update(runs)
        .where(runs.c.id == ids_of(lost))
        .values(
            **values,
            available_at=choose((ending(runs), runs.c.available_at), otherwise=func.greatest(CLOCK, due)),
            event_seq=runs.c.event_seq + ONE,
            fencing_token=runs.c.fencing_token - token,
        )
        .returning(runs.c.id, runs.c.status, runs.c.event_seq, runs.c.attempts)
        .cte("swept")
    )
    return select(moved.c.id, moved.c.status).add_cte(record(t, moved, *expired_event(moved)))


class Sweeps(Reaper):
    """With a sweep that lacks something."""

    def __init__(self, **lacking):
        self._lacking = lacking

    def sweep(self, t):
        return sweep(t, **self._lacking)


class TestSweeps(ClaimPolicySuite):
    claim = Sweeps()
    fails = ()


class TestNeverSweeps(ClaimPolicySuite):
    claim = Sweeps(never=True)
    fails = (LANES, PAUSED, LOCKED, BACK, USED_UP, ONCE, CANCELLED, STALE, KILLED, SWEEP_LIMIT, SWEEP_AFTER)


class TestSweepsTooEarly(ClaimPolicySuite):
    claim = Sweeps(expired=False)
    fails = (LANES, PAUSED, LOCKED, RUNNING, BACK, BACKOFF, STALE, KILLED)


class TestSweepsAll(ClaimPolicySuite):
    claim = Sweeps(limit=False)
    fails = (SWEEP_LIMIT, SWEEP_AFTER)


class TestSweepsFromTheStart(ClaimPolicySuite):
    claim = Sweeps(after=False)
    fails = (SWEEP_AFTER,)


class TestSweepsWithoutBackoff(ClaimPolicySuite):
    claim = Sweeps(backoff=False)
    fails = (BACKOFF,)


class TestKillsWhatWasCancelled(ClaimPolicySuite):
    claim = Sweeps(cancels=False)
    fails = (CANCELLED,)


class TestGivesTheTokenBack(ClaimPolicySuite):
    claim = Sweeps(token=1)
    fails = (LANES, PAUSED, LIMIT, LOCKED, BACK, USED_UP, ONCE, CANCELLED, STALE, KILLED, SWEEP_LIMIT, SWEEP_AFTER)


class Takes(Takeover):
    """A takeover whose arm for expired leases is another."""

    expired = backs_off = ends = True

    def arms(self):
        return (self.arm, pending_arm)

    def arm(self, scope):
        runs, lanes = scope.t.runs, scope.lanes
        ends = ending(runs).label("ends") if self.ends else false().label("ends")
        found = select(runs.c.id, true().label("expired"), ends, lanes.c.deadline, lanes.c.on_lost)
        found = found.select_from(runs.join(lanes, (runs.c.queue == lanes.c.queue) & (runs.c.kind == lanes.c.kind)))
        found = found.where(runs.c.status == LEASED).limit(scope.limit).with_for_update(of=runs, skip_locked=True)
        if self.expired:
            found = found.where(runs.c.locked_until <= STATEMENT_TIME)
        if self.backs_off:
            found = found.where(or_(ending(runs), lost_and_due(runs)))
        return materialized(found, "overdue")


class Steals(Takes):
    expired = False


class TestSteals(ClaimPolicySuite):
    claim = Steals()
    fails = (TWICE, LANES, PAUSED, LOCKED, COST, RUNNING, BACK, STALE, KILLED)


class TakesAtOnce(Takes):
    backs_off = False


class TestTakesAtOnce(ClaimPolicySuite):
    claim = TakesAtOnce()
    fails = (BACKOFF,)


class TakesWhatMustEnd(Takes):
    ends = False


class TestTakesWhatMustEnd(ClaimPolicySuite):
    claim = TakesWhatMustEnd()
    fails = (USED_UP, ONCE, CANCELLED)


class NoIndex(Takeover):
    def arms(self):
        return (expired_arm, pending_arm)

    def indexes(self, t):
        return ()


class TestNoIndex(ClaimPolicySuite):
    claim = NoIndex()
    fails = (COST,)
