"""Reading runs, events and counts. Runs are looked for in the hot table and in the history alike."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Select,
    Text,
    Uuid,
    bindparam,
    cast,
    func,
    or_,
    select,
    union_all,
)

from runqueue.schema.tables import Tables
from runqueue.statements.parts import (
    CANCELLED,
    DEAD,
    DONE,
    LEASED,
    PENDING,
    STATEMENT_TIME,
    array,
    in_seconds,
    run_columns,
)
from runqueue.statements.parts import status as status_literal
from runqueue.types import RunStatus


@cache
def get(t: Tables) -> Executable:
    """One run by id, of one tenant where `tenant_id` is not null."""
    tenant = bindparam("tenant", type_=Text)

    def of(table: Any) -> Select[Any]:
        return select(*run_columns(table)).where(
            table.c.id == bindparam("run_id", type_=Uuid), or_(tenant.is_(None), table.c.tenant_id == tenant)
        )

    return union_all(of(t.runs), of(t.history))


@cache
def by_ids(t: Tables) -> Executable:
    """The runs in `ids`."""

    def of(table: Any) -> Select[Any]:
        return select(*run_columns(table)).where(table.c.id == func.any(array("ids", Uuid())))

    return union_all(of(t.runs), of(t.history))


@cache
def page(t: Tables, filters: tuple[str, ...], *, status: RunStatus | None, after: bool) -> Executable:
    """Runs, newest id first, equal in the columns `filters` and in `status`, below the id `cursor` with `after`."""

    def of(table: Any) -> Select[Any]:
        statement = select(*run_columns(table)).where(*(table.c[x] == bindparam(x, type_=Text) for x in filters))
        if status is not None:
            statement = statement.where(table.c.status == status_literal(status))
        if after:
            statement = statement.where(table.c.id < bindparam("cursor", type_=Uuid))
        return statement.order_by(table.c.id.desc()).limit(bindparam("limit", type_=BigInteger))

    both = union_all(
        *(select(x.subquery(name)) for x, name in ((of(t.runs), "hot"), (of(t.history), "cold")))
    ).subquery("r")
    return select(both).order_by(both.c.id.desc()).limit(bindparam("limit", type_=BigInteger))


@cache
def events(t: Tables) -> Executable:
    """Events of a run with a `seq` above `after`, in order."""
    e = t.events
    return (
        select(e.c.run_id, e.c.seq, e.c.type, cast(e.c.data_json, Text).label("data"), e.c.created_at)
        .where(e.c.run_id == bindparam("run_id", type_=Uuid), e.c.seq > bindparam("after", type_=BigInteger))
        .order_by(e.c.seq)
        .limit(bindparam("limit", type_=BigInteger))
    )


@cache
def watch(t: Tables) -> Executable:
    """State and last event number of the runs in `ids`: all that waiters and event readers of a process look at."""

    def of(table: Any) -> Select[Any]:
        return select(table.c.id, table.c.status, table.c.event_seq).where(table.c.id == func.any(array("ids", Uuid())))

    return union_all(of(t.runs), of(t.history))


@cache
def stats(t: Tables) -> Executable:
    """Counts by queue and kind, of the hot table."""
    runs = t.runs

    def count(status: ColumnElement[str], *more: ColumnElement[bool]) -> ColumnElement[int]:
        return func.count().filter(runs.c.status == status, *more)

    due = runs.c.available_at <= STATEMENT_TIME
    return (
        select(
            runs.c.queue,
            runs.c.kind,
            count(PENDING).label("pending"),
            count(PENDING, due).label("due"),
            count(LEASED).label("leased"),
            count(DONE).label("done"),
            count(DEAD).label("dead"),
            count(CANCELLED).label("cancelled"),
            in_seconds(STATEMENT_TIME - func.min(runs.c.available_at).filter(runs.c.status == PENDING, due)).label(
                "oldest_due"
            ),
        )
        .group_by(runs.c.queue, runs.c.kind)
        .order_by(runs.c.queue, runs.c.kind)
    )
