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
    select,
)
from sqlalchemy.dialects.postgresql import insert as pg_insert

from runqueue.schema.tables import Tables
from runqueue.statements.parts import CLOCK, array, json_text, run_columns, seconds

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
    "parent_id": Uuid(),
}
"""The array parameters of `enqueue`, one value a run."""

KEY: dict[str, Any] = {
    "tenant_id": Text(),
    "kind": Text(),
    "idempotency_key": Text(),
    "run_id": Uuid(),
    "input_digest": Text(),
}


def _rows(parameters: dict[str, Any]) -> Any:
    return (
        func.unnest(*(array(name, of) for name, of in parameters.items()))
        .table_valued(*(column(name, of) for name, of in parameters.items()), name="new")
        .render_derived()
    )


@cache
def enqueue(t: Tables) -> Executable:
    """Insert the runs that the array parameters of `NEW_RUN` describe; return them."""
    new = _rows(NEW_RUN)
    due: ColumnElement[Any] = func.coalesce(new.c.available_at, CLOCK + seconds(func.coalesce(new.c.delay, 0)))
    values = {
        "id": new.c.id,
        "tenant_id": new.c.tenant_id,
        "queue": new.c.queue,
        "kind": new.c.kind,
        "priority": new.c.priority,
        "max_attempts": new.c.max_attempts,
        "available_at": due,
        "input_json": json_text(new.c.input),
        "budget_json": json_text(new.c.budget),
        "idempotency_key": new.c.idempotency_key,
        "parent_id": new.c.parent_id,
    }
    return insert(t.runs).from_select(list(values), select(*values.values())).returning(*run_columns(t.runs))


@cache
def reserve_keys(t: Tables) -> Executable:
    """Insert idempotency keys, in their order, so that two batches cannot deadlock; return those that were new.

    An uncommitted twin is waited for. What it leaves behind is not in this statement's snapshot: look again with
    `find_keys`, a second statement.
    """
    new = _rows(KEY)
    rows = select(*(new.c[name] for name in KEY)).order_by(new.c.tenant_id, new.c.kind, new.c.idempotency_key)
    return (
        pg_insert(t.keys)
        .from_select(list(KEY), rows)
        .on_conflict_do_nothing()
        .returning(t.keys.c.tenant_id, t.keys.c.kind, t.keys.c.idempotency_key, t.keys.c.run_id)
    )


@cache
def find_keys(t: Tables) -> Executable:
    """The runs that hold the given keys, and the digest of the input that they were enqueued with."""
    wanted = {name: KEY[name] for name in ("tenant_id", "kind", "idempotency_key")}
    given = _rows(wanted)
    return select(
        t.keys.c.tenant_id, t.keys.c.kind, t.keys.c.idempotency_key, t.keys.c.run_id, t.keys.c.input_digest
    ).join_from(
        given,
        t.keys,
        (t.keys.c.tenant_id == given.c.tenant_id)
        & (t.keys.c.kind == given.c.kind)
        & (t.keys.c.idempotency_key == given.c.idempotency_key),
    )
