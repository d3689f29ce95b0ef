"""Claim policies that find the wrong runs."""

from __future__ import annotations

from sqlalchemy import false, literal, null, or_, select, true

from runqueue.policies import Reaper, Takeover
from runqueue.statements.claim import expired_arm, pending_arm
from runqueue.statements.expiry import ending, lost_and_due
from runqueue.statements.parts import LEASED, PENDING, STATEMENT_TIME, materialized
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
