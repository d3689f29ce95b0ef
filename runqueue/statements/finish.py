"""Ending a lease: completions in batches, every other ending one by one."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Executable,
    Float,
    Text,
    Uuid,
    bindparam,
    column,
    func,
    null,
    select,
    update,
)

from runqueue.schema.tables import Tables
from runqueue.statements.journal import record
from runqueue.statements.parts import (
    CLOCK,
    DONE,
    ONE,
    STATEMENT_TIME,
    array,
    held,
    in_seconds,
    joined,
    json_text,
    leases,
    run_columns,
    seconds,
    status,
)
from runqueue.types import RunStatus


@cache
def complete(t: Tables, *, wait: bool = True) -> Executable:
    """End the leases given by `ids` and `tokens` as done, with `results`; return those that were ended.

    The rows are locked in id order first, so that two batches cannot deadlock. Without `wait`, rows that another
    transaction has locked are left.
    """
    runs = t.runs
    given = (
        func.unnest(array("ids", Uuid()), array("tokens", BigInteger()), array("results", Text()))
        .table_valued(column("id", Uuid), column("token", BigInteger), column("result", Text), name="d")
        .render_derived()
    )
    mine = (
        select(runs.c.id, given.c.result)
        .where(*held(t, given))
        .order_by(runs.c.id)
        .with_for_update(key_share=True, skip_locked=not wait, of=runs)
        .cte("mine")
        .prefix_with("MATERIALIZED")
    )
    return (
        update(runs)
        .where(runs.c.id == joined(mine))
        .values(
            status=DONE,
            result_json=json_text(mine.c.result),
            settled_token=runs.c.fencing_token,
            locked_by=null(),
            locked_until=null(),
            deadline_at=null(),
            error_code=null(),
            error_message=null(),
            finished_at=CLOCK,
            updated_at=CLOCK,
        )
        .returning(runs.c.id, runs.c.fencing_token)
    )


@cache
def settled(t: Tables) -> Executable:
    """For leases given by `ids` and `tokens`: the run's status, whether this lease's own holder ended it, or has it."""
    runs, given = t.runs, leases()
    return select(
        given.c.id,
        given.c.token,
        runs.c.status,
        (runs.c.settled_token == given.c.token).label("own"),
        ((runs.c.fencing_token == given.c.token) & runs.c.locked_until.is_not(None)).label("held"),
    ).where(runs.c.id == func.any(array("ids", Uuid())), runs.c.id == given.c.id)


@cache
def hold(t: Tables, *, wait: bool = True) -> Executable:
    """Lock the run of a lease, and read what its ending depends on; no row where the lease is lost.

    Without `wait`, no row either where another transaction has it locked.
    """
    runs = t.runs
    return (
        select(*run_columns(runs), in_seconds(STATEMENT_TIME - runs.c.created_at).label("age"))
        .where(
            runs.c.id == bindparam("run_id", type_=Uuid),
            runs.c.fencing_token == bindparam("token", type_=BigInteger),
            runs.c.locked_until.is_not(None),
        )
        .with_for_update(key_share=True, skip_locked=not wait)
    )


@cache
def settle(t: Tables, target: RunStatus) -> Executable:
    """End the lease of a run that `hold` has locked, as pending, dead or cancelled, and record why.

    Parameters: run_id, token, delay, given_back (attempts), error_code, error_message, type, data.
    """
    runs = t.runs
    ends = target.terminal
    moved = (
        update(runs)
        .where(
            runs.c.id == bindparam("run_id", type_=Uuid),
            runs.c.fencing_token == bindparam("token", type_=BigInteger),
            runs.c.locked_until.is_not(None),
        )
        .values(
            status=status(target),
            settled_token=runs.c.fencing_token,
            attempts=runs.c.attempts - bindparam("given_back", type_=BigInteger),
            available_at=runs.c.available_at if ends else CLOCK + seconds(bindparam("delay", type_=Float(53))),
            locked_by=null(),
            locked_until=null(),
            deadline_at=null(),
            error_code=func.coalesce(bindparam("error_code", type_=Text), runs.c.error_code),
            error_message=func.coalesce(bindparam("error_message", type_=Text), runs.c.error_message),
            finished_at=CLOCK if ends else null(),
            updated_at=CLOCK,
            event_seq=runs.c.event_seq + ONE,
        )
        .returning(*run_columns(runs))
        .cte("moved")
    )
    type_: Any = bindparam("type", type_=Text)
    journal = record(t, moved, type_, json_text(bindparam("data", type_=Text)))
    return select(*moved.c).add_cte(journal)
