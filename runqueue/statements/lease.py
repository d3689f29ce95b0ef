"""Renewing leases, all of a worker with one statement."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Executable, Float, bindparam, false, func, select, true, update

from runqueue.schema.tables import Tables
from runqueue.statements.parts import CLOCK, ONE, held, ids_of, in_seconds, leases, seconds


@cache
def heartbeat(t: Tables) -> Executable:
    """Extend the leases given by `ids` and `tokens`, never past a run's deadline; one row for each of them.

    Rows that another transaction has locked are skipped, so that one of them cannot hold up the others: they come back
    not renewed but `held`.
    """
    runs, given = t.runs, leases()
    mine = (
        select(runs.c.id)
        .where(*held(t, given))
        .order_by(runs.c.id)
        .with_for_update(key_share=True, skip_locked=True, of=runs)
        .cte("mine")
        .prefix_with("MATERIALIZED")
    )
    until = CLOCK + seconds(bindparam("lease", type_=Float(53)))
    renewed = (
        update(runs)
        .where(runs.c.id == ids_of(mine))
        .values(locked_until=func.least(until, func.coalesce(runs.c.deadline_at, until)), updated_at=CLOCK)
        .returning(runs.c.id, runs.c.fencing_token, runs.c.locked_until, runs.c.cancel_requested_at)
        .cte("renewed")
    )
    again = leases()
    seen = (
        select(runs.c.fencing_token, runs.c.locked_until, runs.c.cancel_requested_at)
        .where(runs.c.id == again.c.id)
        .limit(ONE)  # keeps it a probe by primary key for each lease
        .lateral("seen")
    )
    now_until = func.coalesce(renewed.c.locked_until, seen.c.locked_until)
    still = (seen.c.fencing_token == again.c.token) & seen.c.locked_until.is_not(None)
    # by token too: a worker may ask for a lost lease and for the newest one of the same run at once
    this_one = (renewed.c.id == again.c.id) & (renewed.c.fencing_token == again.c.token)
    asked = func.coalesce(renewed.c.cancel_requested_at, seen.c.cancel_requested_at).is_not(None)
    return select(
        again.c.id,
        again.c.token,
        renewed.c.id.is_not(None).label("renewed"),
        func.coalesce(still, false()).label("held"),
        now_until.label("locked_until"),
        asked.label("cancel_requested"),
        in_seconds(now_until - CLOCK).label("time_left"),
    ).select_from(again.outerjoin(renewed, this_one).outerjoin(seen, true()))
