"""Enqueueing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from runqueue import values
from runqueue.errors import IdempotencyConflict, InvalidRun, RunNotFound, RunqueueError
from runqueue.operations.context import Context, work_hint
from runqueue.operations.rows import run_of
from runqueue.statements import enqueue as statements
from runqueue.statements.parts import notify
from runqueue.statements.reading import by_ids
from runqueue.types import NewRun, Run

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils.compat import uuid7

Key = tuple[str, str, str]
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
    if not rows:
        return []
    holders = _holders(connection, ctx, [row for row in rows if row["idempotency_key"] is not None])
    own = [row for row in rows if holders.get(_key(row), row["id"]) == row["id"]]
    runs = {run.id: run for run in _insert(connection, ctx, own)}
    missing = {x for x in holders.values() if x not in runs}
    if missing:
        found = connection.execute(by_ids(ctx.t), {"ids": list(missing)})
        runs.update((run.id, run) for run in map(run_of, found))
    wanted = [holders.get(_key(row), row["id"]) for row in rows]
    for run_id in wanted:
        if run_id not in runs:
            raise RunNotFound(run_id)
    return [runs[run_id] for run_id in wanted]


def _insert(connection: Connection, ctx: Context, rows: Sequence[dict[str, Any]]) -> list[Run]:
    if not rows:
        return []
    parameters = {name: [row[name] for row in rows] for name in statements.NEW_RUN}
    stored = [run_of(row) for row in connection.execute(statements.enqueue(ctx.t), parameters)]
    if ctx.settings.notify:
        for hint in sorted({work_hint(row["queue"]) for row in rows}):
            connection.execute(notify(ctx.channel), {"payload": hint})
    return stored


def _holders(connection: Connection, ctx: Context, rows: Sequence[dict[str, Any]]) -> dict[Key, UUID]:
    """Which run has each key: this one, or one from before."""
    holders: dict[Key, UUID] = {}
    first = {_key(row): row for row in reversed(rows)}
    for _ in range(3):
        open_rows = [row for key, row in first.items() if key not in holders]
        if not open_rows:
            break
        parameters = {name: [row[_FROM.get(name, name)] for row in open_rows] for name in statements.KEY}
        for row in connection.execute(statements.reserve_keys(ctx.t), parameters):
            holders[row.tenant_id, row.kind, row.idempotency_key] = row.run_id
        taken = [row for row in open_rows if _key(row) not in holders]
        if taken:
            wanted = {name: [row[name] for row in taken] for name in ("tenant_id", "kind", "idempotency_key")}
            for row in connection.execute(statements.find_keys(ctx.t), wanted):
                key = (row.tenant_id, row.kind, row.idempotency_key)
                holders[key] = row.run_id
                if row.input_digest != first[key]["digest"]:
                    raise IdempotencyConflict(row.idempotency_key, row.run_id)
    for row in rows:
        if _key(row) not in holders:
            raise RunqueueError(f"the idempotency key {row['idempotency_key']!r} was taken and freed again three times")
        if row["digest"] != first[_key(row)]["digest"]:
            raise IdempotencyConflict(row["idempotency_key"], holders[_key(row)])
    return holders


_FROM = {"run_id": "id", "input_digest": "digest"}


def _key(row: dict[str, Any]) -> Key:
    return row["tenant_id"], row["kind"], row["idempotency_key"]


def _row(ctx: Context, new: NewRun, n: int, parent_id: UUID | None, *, single: bool) -> dict[str, Any]:
    at = "" if single else f"runs[{n}]."
    limits = ctx.settings
    if new.delay is not None and new.available_at is not None:
        raise InvalidRun(f"{at}delay", "give delay or available_at, not both")
    stored = values.encode(new.input, field=f"{at}input", limit=limits.input_limit, depth=limits.json_depth)
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
        else values.encode(new.budget, field=f"{at}budget", limit=limits.input_limit, depth=limits.json_depth),
        "idempotency_key": None if key is None else values.name(key, field=f"{at}idempotency_key", limit=1024),
        "digest": None if key is None else values.digest(stored),
        "parent_id": parent_id,
    }
