"""What becomes of a run whose lease ran out: the rules that the sweep and a claim of expired leases share."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Text,
    Uuid,
    bindparam,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql import FromClause

from runqueue.schema.tables import Tables
from runqueue.statements.journal import record
from runqueue.statements.parts import (
    CANCELLED,
    CLOCK,
    DEAD,
    LEASED,
    ONE,
    PENDING,
    STATEMENT_TIME,
    choose,
    ids_of,
    lost_delay,
)

LEASE_EXPIRED = "lease_expired"


def ending(runs: FromClause) -> ColumnElement[bool]:
    """An expired run that may not go on: a cancel was requested, no attempt is left, or its handler forbids it."""
    return or_(
        runs.c.cancel_requested_at.is_not(None),
        runs.c.attempts >= runs.c.max_attempts,
        runs.c.on_lost == literal_column("'fail'", Text),
    )


def lost_and_due(runs: FromClause) -> ColumnElement[bool]:
    """The backoff of a lost run has passed; it counts from the last heartbeat, so a usual lease is longer than it."""
    return runs.c.updated_at + lost_delay(runs.c.attempts) <= STATEMENT_TIME


def expired_status(runs: FromClause, otherwise: ColumnElement[str]) -> ColumnElement[str]:
    """Cancelled, dead, or what the caller makes of a run that may go on."""
    return choose((runs.c.cancel_requested_at.is_not(None), CANCELLED), (ending(runs), DEAD), otherwise=otherwise)


def outcome_values(t: Tables, target: ColumnElement[str]) -> dict[str, Any]:
    """The SET of a run that leaves its lease by expiry."""
    runs = t.runs
    died = ending(runs) & runs.c.cancel_requested_at.is_(None)
    return {
        "status": target,
        "locked_by": null(),
        "locked_until": null(),
        "deadline_at": null(),
        "finished_at": choose((ending(runs), CLOCK), otherwise=null()),
        "error_code": choose((died, literal(LEASE_EXPIRED)), otherwise=runs.c.error_code),
        "error_message": choose(
            (died, literal("the worker was lost: its lease ran out without a heartbeat")),
            otherwise=runs.c.error_message,
        ),
        "updated_at": CLOCK,
    }


def expired_event(moved: FromClause) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """The type and data of the event that an expiry leaves."""
    type_ = choose(
        (moved.c.status == CANCELLED, literal("run.cancelled")),
        (moved.c.status == DEAD, literal("run.dead")),
        otherwise=literal("run.lost"),
    )
    return type_, func.jsonb_build_object(
        literal("reason", Text), literal(LEASE_EXPIRED, Text), literal("attempts", Text), moved.c.attempts
    )


@cache
def sweep(t: Tables, *, only_ending: bool) -> Executable:
    """Move at most `batch` expired runs with an id above `after`, in id order; return their ids and new states.

    The candidates are locked where they are found, and nothing but locked rows is written: a heartbeat or completion
    that came first is seen, one that comes later waits and finds its lease gone.
    """
    runs = t.runs
    must = [ending(runs)] if only_ending else []
    expired = (
        select(runs.c.id)
        .where(runs.c.status == LEASED, runs.c.id > bindparam("after", type_=Uuid))
        .where(runs.c.locked_until <= STATEMENT_TIME, *must)
        .order_by(runs.c.id)
        .limit(bindparam("batch", type_=BigInteger))
        # FOR UPDATE, not NO KEY UPDATE: a transaction of the run's holder may keep a KEY SHARE lock on it
        .with_for_update(skip_locked=True)
        .cte("expired")
        .prefix_with("MATERIALIZED")
    )
    retry_at = func.greatest(CLOCK, runs.c.updated_at + lost_delay(runs.c.attempts))
    swept = (
        update(runs)
        .where(runs.c.id == ids_of(expired), runs.c.locked_until <= STATEMENT_TIME)
        .values(
            **outcome_values(t, expired_status(runs, PENDING)),
            available_at=choose((ending(runs), runs.c.available_at), otherwise=retry_at),
            event_seq=runs.c.event_seq + ONE,
        )
        .returning(runs.c.id, runs.c.status, runs.c.event_seq, runs.c.attempts)
        .cte("swept")
    )
    return select(swept.c.id, swept.c.status).add_cte(record(t, swept, *expired_event(swept)))


@cache
def expired_ids(t: Tables) -> Executable:
    """Ids of at most `batch` expired runs, unlocked: only to go through them one by one."""
    runs = t.runs
    return (
        select(runs.c.id)
        .where(runs.c.status == LEASED, runs.c.id > bindparam("after", type_=Uuid))
        .where(runs.c.locked_until <= STATEMENT_TIME)
        .order_by(runs.c.id)
        .limit(bindparam("batch", type_=BigInteger))
    )
