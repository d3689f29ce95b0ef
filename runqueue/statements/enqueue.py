"""Storing new runs, any number with one statement."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Executable,
    Float,
    Integer,
    Text,
    Uuid,
    column,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import insert as pg_insert

from runqueue.schema.tables import Tables
from runqueue.statements.parts import CLOCK, NONE, array, json_text, run_columns, seconds

NEW_RUN: dict[str, Any] = {
    "id": Uuid(),
    "tenant_id": Text(),
    "queue": Text(),
    "kind": Text(),
    "priority": Integer(),
    "max_attempts": Integer(),
    "delay": Float(53),
    "available_at": DateTime(timezone=True),
    "input": Text(),
    "budget": Text(),
    "idempotency_key": Text(),
    "digest": Text(),
    "parent_id": Uuid(),
}
"""The array parameters of `enqueue`, one value a run."""

KEY: dict[str, Any] = {name: NEW_RUN[name] for name in ("tenant_id", "kind", "idempotency_key")}
"""The array parameters of `find_keys`."""


def _rows(parameters: dict[str, Any]) -> Any:
    return (
        func.unnest(*(array(name, of) for name, of in parameters.items()))
        .table_valued(*(column(name, of) for name, of in parameters.items()), name="new")
        .render_derived()
    )


@cache
def enqueue(t: Tables) -> Executable:
    """Insert the runs that the array parameters of `NEW_RUN` describe, unless their key is taken; return the inserted.

    A key and its run are one statement, so that no transaction, and no lack of one, can separate them. Keys are taken
    in their order, so that two batches cannot deadlock. An uncommitted twin is waited for; what it leaves behind is not
    in this statement's snapshot: look with `find_keys`, a second statement.
    """
    new = _rows(NEW_RUN)
    keys = t.keys
    wanted = select(new.c.tenant_id, new.c.kind, new.c.idempotency_key, new.c.id, new.c.digest)
    reserved = (
        pg_insert(keys)
        .from_select(
            [keys.c.tenant_id, keys.c.kind, keys.c.idempotency_key, keys.c.run_id, keys.c.input_digest],
            wanted.where(new.c.idempotency_key.is_not(None)).order_by(
                new.c.tenant_id, new.c.kind, new.c.idempotency_key
            ),
        )
        .on_conflict_do_nothing()
        .returning(keys.c.run_id)
        .cte("reserved")
    )
    again = _rows(NEW_RUN)
    due: ColumnElement[Any] = func.coalesce(again.c.available_at, CLOCK + seconds(func.coalesce(again.c.delay, NONE)))
    values = {
        "id": again.c.id,
        "tenant_id": again.c.tenant_id,
        "queue": again.c.queue,
        "kind": again.c.kind,
        "priority": again.c.priority,
        "max_attempts": again.c.max_attempts,
        "available_at": due,
        "input_json": json_text(again.c.input),
        "budget_json": json_text(again.c.budget),
        "idempotency_key": again.c.idempotency_key,
        "parent_id": again.c.parent_id,
    }
    rows = (
        select(*values.values())
        .select_from(again.outerjoin(reserved, reserved.c.run_id == again.c.id))
        .where(or_(again.c.idempotency_key.is_(None), reserved.c.run_id.is_not(None)))
    )
    return insert(t.runs).from_select(list(values), rows).returning(*run_columns(t.runs))


@cache
def find_keys(t: Tables) -> Executable:
    """The runs that hold the given keys, and the digest of the input that they were enqueued with."""
    given = _rows(KEY)
    return select(
        t.keys.c.tenant_id, t.keys.c.kind, t.keys.c.idempotency_key, t.keys.c.run_id, t.keys.c.input_digest
    ).join_from(
        given,
        t.keys,
        (t.keys.c.tenant_id == given.c.tenant_id)
        & (t.keys.c.kind == given.c.kind)
        & (t.keys.c.idempotency_key == given.c.idempotency_key),
    )
