"""Statements that delete graph state, and copy it. Pure: no connection, no clock."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Delete,
    Insert,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    delete,
    exists,
    func,
    literal,
    select,
)
from sqlalchemy.dialects.postgresql import insert

from runqueue_plugins.langgraph.statements import KEY, given
from runqueue_plugins.langgraph.tables import GraphTables


@cache
def threads_of_runs(t: GraphTables) -> Select[Any]:
    """The threads that the runs have written to."""
    c = t.checkpoints.c
    return select(c.thread_id).distinct().where(c.tenant_id == bindparam("tenant_id"), _any(c.run_id, "run_ids"))


@cache
def lineage(t: GraphTables) -> Select[Any]:
    """Which checkpoints the threads have, from whom each descends, and what it says of snapshots."""
    c = t.checkpoints.c
    columns = (
        c.thread_id,
        c.checkpoint_ns,
        c.checkpoint_id,
        c.parent_id,
        cast(c.metadata_json, Text).label("metadata"),
    )
    return select(*columns).where(c.tenant_id == bindparam("tenant_id"), _any(c.thread_id, "threads"))


@cache
def delete_checkpoints(t: GraphTables) -> Delete:
    """Delete those that are bound."""
    keys = given(*KEY)
    c = t.checkpoints.c
    return delete(t.checkpoints).where(c.tenant_id == bindparam("tenant_id"), *(c[x] == keys.c[x] for x in KEY))


@cache
def delete_of_runs(t: GraphTables) -> Delete:
    """Delete the checkpoints that the runs have made."""
    c = t.checkpoints.c
    return delete(t.checkpoints).where(c.tenant_id == bindparam("tenant_id"), _any(c.run_id, "run_ids"))


@cache
def delete_orphans(t: GraphTables) -> tuple[Delete, Delete]:
    """Delete the writes of the threads whose checkpoint is gone, and the values that no checkpoint has any more."""
    kept, writes, values = t.checkpoints, t.writes, t.values
    versions = func.jsonb_each_text(kept.c.versions_json).table_valued("key", "value", name="versions").lateral()
    of_write = exists().where(*(kept.c[name] == writes.c[name] for name in ("tenant_id", *KEY)))
    used = (
        select(kept.c.tenant_id, kept.c.thread_id, kept.c.checkpoint_ns, versions.c.key, versions.c.value)
        .select_from(kept)
        .join(versions, literal(True))
        .where(kept.c.tenant_id == bindparam("tenant_id"), _any(kept.c.thread_id, "threads"))
        .subquery()
    )
    of_value = exists().where(
        *(used.c[name] == values.c[name] for name in ("tenant_id", "thread_id", "checkpoint_ns")),
        used.c.key == values.c.channel,
        used.c.value == values.c.version,
    )
    return (
        delete(writes).where(*_threads(writes), ~of_write),
        delete(values).where(*_threads(values), ~of_value),
    )


@cache
def delete_threads(t: GraphTables) -> tuple[Delete, ...]:
    """Delete all that the threads have."""
    return tuple(delete(table).where(*_threads(table)) for table in (t.checkpoints, t.values, t.writes))


@cache
def copy_thread(t: GraphTables) -> tuple[Insert, ...]:
    """Copy all that a thread has to another; what the other has already stays."""
    made = []
    for table in (t.values, t.writes, t.checkpoints):
        names = [c.name for c in table.columns]
        columns = [bindparam("target", type_=Text) if name == "thread_id" else table.c[name] for name in names]
        source = and_(table.c.tenant_id == bindparam("tenant_id"), table.c.thread_id == bindparam("source"))
        made.append(insert(table).from_select(names, select(*columns).where(source)).on_conflict_do_nothing())
    return tuple(made)


def _threads(table: Table) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.tenant_id == bindparam("tenant_id"), _any(table.c.thread_id, "threads")


def _any(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    return column == any_(bindparam(name, type_=ARRAY(Text)))
