"""Enqueueing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from runqueue import values
from runqueue.driver import is_autocommit
from runqueue.errors import IdempotencyConflict, InvalidRun, RunNotFound, RunqueueError
from runqueue.operations.announce import announce
from runqueue.operations.context import Context, work_hint
from runqueue.operations.redacting import encode
from runqueue.operations.rows import run_of
from runqueue.statements import enqueue as statements
from runqueue.statements.reading import by_ids
from runqueue.types import NewRun, Run

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils.compat import uuid7

Key = tuple[str, str, str]
Row = dict[str, Any]
_INT = 2**31


def enqueue_many(
    connection: Connection, ctx: Context, new: Sequence[NewRun], parent_id: UUID | None = None
) -> list[Run]:
    """Store the runs, in the caller's transaction; return them in the order given.

    A run whose (tenant, kind, key) exists already is not stored again: the existing one is returned. Raises InvalidRun,
    before anything is written, for a value that cannot be stored, and IdempotencyConflict for a used key with another
    input.
    """
    rows = [_row(ctx, one, n, parent_id, single=len(new) == 1) for n, one in enumerate(new)]
    _refuse_conflicts(rows)
    keyed = sum(row["idempotency_key"] is not None for row in rows)
    if keyed and len(rows) > 1 and not is_autocommit(connection):
        with connection.begin_nested():  # a conflict must leave nothing of the batch in the caller's transaction
            return _store(connection, ctx, rows)
    return _store(connection, ctx, rows)


def _store(connection: Connection, ctx: Context, rows: Sequence[Row]) -> list[Run]:
    runs: dict[UUID, Run] = {}
    holders: dict[Key, UUID] = {}
    todo = list(rows)
    for _ in range(3):
        if not todo:
            break
        parameters = {name: [row[name] for row in todo] for name in statements.NEW_RUN}
        stored = [run_of(row) for row in connection.execute(statements.enqueue(ctx.t), parameters)]
        runs.update((run.id, run) for run in stored)
        todo = [row for row in todo if row["id"] not in runs]
        if todo:
            holders.update(_holders(connection, ctx, todo))
            todo = [row for row in todo if _key(row) not in holders]
    for row in todo:
        raise RunqueueError(f"the idempotency key {row['idempotency_key']!r} was taken and freed again three times")
    ctx.hooks.runs_enqueued(connection, list(runs.values()), ctx.t.schema)
    announce(connection, ctx, (work_hint(run.queue) for run in runs.values()))
    found = connection.execute(by_ids(ctx.t), {"ids": list(set(holders.values()) - runs.keys())}) if holders else ()
    runs.update((run.id, run) for run in map(run_of, found))
    return [_of(runs, row["id"] if row["id"] in runs else holders[_key(row)]) for row in rows]


def _of(runs: dict[UUID, Run], run_id: UUID) -> Run:
    if run_id not in runs:
        raise RunNotFound(run_id)
    return runs[run_id]


def _holders(connection: Connection, ctx: Context, rows: Sequence[Row]) -> dict[Key, UUID]:
    """The runs that have the keys of these rows already. Raises IdempotencyConflict."""
    digests = {_key(row): row["digest"] for row in rows}
    parameters = {name: [row[name] for row in rows] for name in statements.KEY}
    holders = {}
    for held in connection.execute(statements.find_keys(ctx.t), parameters):
        key = (held.tenant_id, held.kind, held.idempotency_key)
        if held.input_digest != digests[key]:
            raise IdempotencyConflict(held.idempotency_key, held.run_id)
        holders[key] = held.run_id
    return holders


def _refuse_conflicts(rows: Sequence[Row]) -> None:
    first: dict[Key, Row] = {}
    for row in rows:
        if row["idempotency_key"] is None:
            continue
        twin = first.setdefault(_key(row), row)
        if twin["digest"] != row["digest"]:
            raise IdempotencyConflict(row["idempotency_key"], twin["id"])


def _key(row: Row) -> Key:
    return row["tenant_id"], row["kind"], row["idempotency_key"]


def _row(ctx: Context, new: NewRun, n: int, parent_id: UUID | None, *, single: bool) -> Row:
    if not isinstance(new, NewRun):
        raise InvalidRun(f"runs[{n}]", f"must be a NewRun, not {type(new).__name__}")
    at = "" if single else f"runs[{n}]."
    limits = ctx.settings
    if new.delay is not None and new.available_at is not None:
        raise InvalidRun(f"{at}delay", "give delay or available_at, not both")
    stored = encode(ctx, new.input, "input", field=f"{at}input", limit=limits.input_limit)
    attempts = limits.max_attempts if new.max_attempts is None else new.max_attempts
    key = new.idempotency_key
    return {
        "id": uuid7(),
        "tenant_id": values.name(new.tenant_id, field=f"{at}tenant_id"),
        "queue": values.name(new.queue, field=f"{at}queue"),
        "kind": values.name(new.kind, field=f"{at}kind"),
        "priority": values.integer(new.priority, field=f"{at}priority", low=-_INT, high=_INT - 1),
        "max_attempts": values.integer(attempts, field=f"{at}max_attempts", low=1, high=_INT - 1),
        "delay": None if new.delay is None else values.seconds(new.delay, field=f"{at}delay"),
        "available_at": None
        if new.available_at is None
        else values.moment(new.available_at, field=f"{at}available_at"),
        "input": stored,
        "budget": None
        if new.budget is None
        else encode(ctx, new.budget, "budget", field=f"{at}budget", limit=limits.input_limit),
        "idempotency_key": None if key is None else values.name(key, field=f"{at}idempotency_key", limit=1024),
        "digest": None if key is None else values.digest(stored),
        "parent_id": parent_id,
    }
