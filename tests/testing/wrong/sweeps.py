"""Claim policies whose sweep does the wrong thing."""

from __future__ import annotations

from sqlalchemy import BigInteger, Uuid, bindparam, false, func, literal, select, update

from runqueue.policies import Reaper
from runqueue.statements.expiry import ending, expired_event, expired_status, outcome_values
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

LANES = "test_other_queues_and_kinds_are_left"
PAUSED = "test_a_paused_lane_gives_nothing"
LIMIT = "test_a_claim_keeps_its_limit"
LOCKED = "test_a_locked_run_holds_up_nobody"
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
    fails = (LANES, PAUSED, LOCKED, RUNNING, BACK, STALE, KILLED)


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
    fails = (
        LANES,
        PAUSED,
        LIMIT,
        LOCKED,
        BACK,
        BACKOFF,
        USED_UP,
        ONCE,
        CANCELLED,
        STALE,
        KILLED,
        SWEEP_LIMIT,
        SWEEP_AFTER,
    )
