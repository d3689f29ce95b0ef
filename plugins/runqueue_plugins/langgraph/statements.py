"""Statements on the tables of graph state. Pure: no connection, no clock."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    FromClause,
    Insert,
    Select,
    String,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    func,
    literal,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB, insert

from runqueue_plugins.langgraph.tables import ASKED_OR_ANSWERED, GraphTables

KEY = ("thread_id", "checkpoint_ns", "checkpoint_id")
ROW = (*KEY, "parent_id", "type", "body")


def _json(name: str) -> ColumnElement[Any]:
    # as text in both directions, whatever serializer the application's engine has
    return cast(bindparam(name, type_=Text), JSONB)


@cache
def put_checkpoint(t: GraphTables) -> Insert:
    """Store a checkpoint; one with the same id is replaced."""
    table = t.checkpoints
    plain = ("tenant_id", *ROW, "run_id")
    new = insert(table).values(
        {name: bindparam(name) for name in plain} | {name: _json(name) for name in ("versions_json", "metadata_json")}
    )
    changed = ("parent_id", "run_id", "type", "body", "versions_json", "metadata_json")
    return new.on_conflict_do_update(constraint=table.primary_key, set_={name: new.excluded[name] for name in changed})


@cache
def put_value(t: GraphTables) -> Insert:
    """Store a channel's value at a version; what a version stands for never changes."""
    return insert(t.values).on_conflict_do_nothing()


@cache
def put_write(t: GraphTables, *, replace: bool) -> Insert:
    """Store a task's write. The first one of an index stays, but errors, interrupts and answers are replaced."""
    new = insert(t.writes)
    if not replace:
        return new.on_conflict_do_nothing()
    changed = ("task_path", "channel", "type", "body")
    return new.on_conflict_do_update(
        constraint=t.writes.primary_key, set_={name: new.excluded[name] for name in changed}
    )


def checkpoints(
    t: GraphTables,
    tenant_id: str,
    *,
    where: dict[str, str],
    metadata: str | None = None,
    before: str | None = None,
    after: tuple[str, str, str] | None = None,
    limit: int,
) -> Select[Any]:
    """A page of checkpoints, newest first in each namespace of each thread. `after` is the last key of the page before.

    In the order of the primary key, backwards, so that a page of a thread costs what it returns.
    """
    c = t.checkpoints.c
    key = [c[name] for name in KEY]
    query = select(
        *(c[name] for name in ROW),
        cast(c.versions_json, Text).label("versions"),
        cast(c.metadata_json, Text).label("metadata"),
    ).where(c.tenant_id == tenant_id, *(c[name] == value for name, value in where.items()))
    if metadata is not None:
        query = query.where(c.metadata_json.contains(cast(literal(metadata, Text), JSONB)))
    if before is not None:
        query = query.where(c.checkpoint_id < before)
    if after is not None:
        query = query.where(tuple_(*key) < tuple_(*(literal(x, String) for x in after)))
    return query.order_by(*(column.desc() for column in key)).limit(limit)


def given(*names: str) -> FromClause:
    """A table of what is bound: one array for each column."""
    arrays = [bindparam(name, type_=ARRAY(Text)) for name in names]
    return func.unnest(*arrays).table_valued(*names, name="given").render_derived()


def _found(keys: FromClause, table: Table, names: tuple[str, ...], columns: tuple[str, ...]) -> Select[Any]:
    """The rows of what is bound, each looked up by its key."""
    key = [table.c[name] == keys.c[name] for name in names]
    # OFFSET keeps the planner, which takes any array for 100 rows long, from reading a tenant's whole table instead
    rows = select(*(table.c[name] for name in columns)).where(table.c.tenant_id == bindparam("tenant_id"), *key)
    found = rows.offset(0).lateral("found")
    return select(*found.c).select_from(keys.join(found, literal(True)))


@cache
def values(t: GraphTables) -> Select[Any]:
    """The values of the channels at the versions that are bound."""
    names = ("thread_id", "checkpoint_ns", "channel", "version")
    return _found(given(*names), t.values, names, (*names, "type", "body"))


@cache
def writes(t: GraphTables) -> Select[Any]:
    """The writes that belong to the checkpoints that are bound."""
    columns = (*KEY, "task_path", "task_id", "idx", "channel", "type", "body")
    return _found(given(*KEY), t.writes, KEY, columns)


@cache
def asked_or_answered(t: GraphTables) -> Select[Any]:
    """The interrupts of a thread and the answers that their tasks took."""
    c = t.writes.c
    columns = (c.checkpoint_ns, c.checkpoint_id, c.task_id, c.channel, c.type, c.body)
    thread = and_(c.tenant_id == bindparam("tenant_id"), c.thread_id == bindparam("thread_id"))
    return select(*columns).where(thread, text(ASKED_OR_ANSWERED))
