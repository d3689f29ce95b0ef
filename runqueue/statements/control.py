"""What operators and applications do to a run from outside: cancel, retry, pause, resume."""

from __future__ import annotations

from functools import cache

from sqlalchemy import (
    ColumnElement,
    Executable,
    Float,
    Text,
    Uuid,
    bindparam,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from runqueue.schema.tables import Tables
from runqueue.statements.journal import record
from runqueue.statements.parts import CANCELLED, CLOCK, DEAD, ONE, PENDING, choose, run_columns, seconds


def one(t: Tables) -> list[ColumnElement[bool]]:
    """The run `run_id`, of `tenant` where that is not null."""
    tenant = bindparam(
        "tenant", type_=Text
    )  # not `tenant_id`: an UPDATE would take a parameter so named for its column
    return [t.runs.c.id == bindparam("run_id", type_=Uuid), or_(tenant.is_(None), t.runs.c.tenant_id == tenant)]


@cache
def cancel(t: Tables) -> Executable:
    """Cancel a pending run; ask a leased one to stop. A run that has ended, or was asked before, gives no row."""
    runs = t.runs
    waiting = runs.c.locked_until.is_(None)
    moved = (
        update(runs)
        .where(*one(t), runs.c.finished_at.is_(None), runs.c.cancel_requested_at.is_(None))
        .values(
            status=choose((waiting, CANCELLED), otherwise=runs.c.status),
            finished_at=choose((waiting, CLOCK), otherwise=null()),
            cancel_requested_at=CLOCK,
            cancel_reason=bindparam("reason", type_=Text),
            leased_at=choose((waiting, null()), otherwise=runs.c.leased_at),  # the end of this call ends no lease
            updated_at=CLOCK,
            event_seq=runs.c.event_seq + ONE,
        )
        .returning(*run_columns(runs))
        .cte("moved")
    )
    type_ = choose((moved.c.status == CANCELLED, literal("run.cancelled")), otherwise=literal("run.cancel_requested"))
    data = func.jsonb_build_object(literal("reason", Text), moved.c.cancel_reason)
    return select(*moved.c).add_cte(record(t, moved, type_, data))


@cache
def retry(t: Tables) -> Executable:
    """Make a dead or cancelled run pending again, with all its attempts. The token goes on counting."""
    runs = t.runs
    moved = (
        update(runs)
        .where(*one(t), or_(runs.c.status == DEAD, runs.c.status == CANCELLED))
        .values(
            status=PENDING,
            attempts=0,
            available_at=CLOCK + seconds(bindparam("delay", type_=Float(53))),
            cancel_requested_at=null(),
            cancel_reason=null(),
            error_code=null(),
            error_message=null(),
            result_json=null(),
            finished_at=null(),
            updated_at=CLOCK,
            event_seq=runs.c.event_seq + ONE,
        )
        .returning(*run_columns(runs))
        .cte("moved")
    )
    return select(*moved.c).add_cte(record(t, moved, literal("run.retried"), func.jsonb_build_object()))


@cache
def pause(t: Tables) -> Executable:
    """Stop claims of a queue, or of one kind in it."""
    values = {name: bindparam(name, type_=Text) for name in ("queue", "kind", "reason")}
    return (
        insert(t.pauses)
        .values(values)
        .on_conflict_do_update(index_elements=["queue", "kind"], set_={"reason": values["reason"]})
    )


@cache
def resume(t: Tables) -> Executable:
    """Undo `pause`."""
    return delete(t.pauses).where(
        t.pauses.c.queue == bindparam("queue", type_=Text), t.pauses.c.kind == bindparam("kind", type_=Text)
    )
