"""What savers do, as functions on a connection that is in a transaction. The sync and the async saver share them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import INTERRUPT
from sqlalchemy import Connection, Row

from runqueue import InvalidRun
from runqueue_plugins.langgraph import codec, statements, tidying
from runqueue_plugins.langgraph.codec import Record
from runqueue_plugins.langgraph.statements import KEY
from runqueue_plugins.langgraph.tables import GraphTables

PAGE = 50
Key = tuple[str, str, str]


def put(connection: Connection, t: GraphTables, row: Record, values: Sequence[Record]) -> None:
    """Store a checkpoint and the values that are new in it."""
    if values:
        connection.execute(statements.put_value(t), values)
    connection.execute(statements.put_checkpoint(t), row)


def put_writes(connection: Connection, t: GraphTables, rows: Sequence[Record], replace: bool) -> None:
    """Store writes of a task."""
    if rows:
        connection.execute(statements.put_write(t, replace=replace), rows)


def read(
    connection: Connection, /, t: GraphTables, serde: SerializerProtocol, tenant_id: str, **query: Any
) -> list[CheckpointTuple]:
    """A page of checkpoints, with their values and writes. `query` is what `statements.checkpoints` takes."""
    rows = connection.execute(statements.checkpoints(t, tenant_id, **query)).all()
    if not rows:
        return []
    wanted = {(*_place(row), channel, version) for row in rows for channel, version in codec.versions_of(row).items()}
    values: dict[tuple[str, str], dict[tuple[str, str], Row[Any]]] = {}
    arrays = _columns(("thread_id", "checkpoint_ns", "channel", "version"), wanted)
    for row in connection.execute(statements.values(t), arrays | {"tenant_id": tenant_id}):
        values.setdefault(_place(row), {})[row.channel, row.version] = row
    writes: dict[Key, list[Row[Any]]] = {}
    for row in connection.execute(statements.writes(t), _columns(KEY, map(_key, rows)) | {"tenant_id": tenant_id}):
        writes.setdefault(_key(row), []).append(row)
    return [codec.checkpoint_tuple(serde, x, values.get(_place(x), {}), writes.get(_key(x), ())) for x in rows]


def answers(
    connection: Connection, t: GraphTables, serde: SerializerProtocol, tenant_id: str, thread_id: str
) -> dict[str, int]:
    """How many answers the task has taken that asked each interrupt of the thread."""
    taken: dict[tuple[str, str, str], int] = {}
    asked: dict[str, list[tuple[str, str, str]]] = {}
    found = connection.execute(statements.asked_or_answered(t), {"tenant_id": tenant_id, "thread_id": thread_id})
    for row in found:
        task, value = (row.checkpoint_ns, row.checkpoint_id, row.task_id), serde.loads_typed((row.type, row.body))
        if row.channel == INTERRUPT:
            for interrupt in value if isinstance(value, list | tuple) else [value]:
                asked.setdefault(getattr(interrupt, "id", ""), []).append(task)
        else:
            taken[task] = len(value) if isinstance(value, list) else 1
    return {id_: max(taken.get(task, 0) for task in tasks) for id_, tasks in asked.items()}


# ---------------------------------------------------------------------------------------------------------- tidying


def delete_threads(connection: Connection, t: GraphTables, tenant_id: str, thread_ids: Sequence[str]) -> None:
    """Delete all that the threads have."""
    for statement in tidying.delete_threads(t):
        connection.execute(statement, {"tenant_id": tenant_id, "threads": list(thread_ids)})


def delete_for_runs(connection: Connection, t: GraphTables, tenant_id: str, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints that the runs have made, and what belongs to them alone."""
    runs = {"tenant_id": tenant_id, "run_ids": list(run_ids)}
    threads = list(connection.execute(tidying.threads_of_runs(t), runs).scalars())
    connection.execute(tidying.delete_of_runs(t), runs)
    _delete_orphans(connection, t, tenant_id, threads)


def copy_thread(connection: Connection, t: GraphTables, tenant_id: str, source: str, target: str) -> None:
    """Copy a thread, all its checkpoints and writes."""
    for statement in tidying.copy_thread(t):
        connection.execute(statement, {"tenant_id": tenant_id, "source": source, "target": target})


def prune(
    connection: Connection,
    t: GraphTables,
    tenant_id: str,
    thread_ids: Sequence[str],
    strategy: Literal["keep_latest", "delete"] | str,
) -> None:
    """Delete the threads, or all but the newest checkpoint of each namespace and what that one is built from."""
    if strategy == "delete":
        delete_threads(connection, t, tenant_id, thread_ids)
        return
    if strategy != "keep_latest":
        raise InvalidRun("strategy", f"must be 'keep_latest' or 'delete', not {strategy!r}")
    threads = {"tenant_id": tenant_id, "threads": list(thread_ids)}
    rows = {_key(row): row for row in connection.execute(tidying.lineage(t), threads)}
    gone = rows.keys() - _needed(rows)
    if gone:
        connection.execute(tidying.delete_checkpoints(t), _columns(KEY, gone) | {"tenant_id": tenant_id})
        _delete_orphans(connection, t, tenant_id, thread_ids)


def _needed(rows: Mapping[Key, Row[Any]]) -> set[Key]:
    """The newest of each namespace; before it, the ancestors whose writes its delta channels are made of."""
    newest: dict[tuple[str, str], Key] = {}
    for key in rows:
        newest[key[:2]] = max(key, newest.get(key[:2], key))
    needed = set()
    for key in newest.values():
        counters = json.loads(rows[key].metadata).get("counters_since_delta_snapshot") or {}
        steps = max((steps for _, steps in counters.values()), default=0)
        for _ in range(steps + 2 if counters else 1):
            if key not in rows:
                break
            needed.add(key)
            key = (*key[:2], rows[key].parent_id or "")
    return needed


def _delete_orphans(connection: Connection, t: GraphTables, tenant_id: str, thread_ids: Sequence[str]) -> None:
    for statement in tidying.delete_orphans(t):
        connection.execute(statement, {"tenant_id": tenant_id, "threads": list(thread_ids)})


def _columns(names: Sequence[str], rows: Any) -> dict[str, Any]:
    columns: list[Collection[str]] = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _key(row: Row[Any]) -> Key:
    return row.thread_id, row.checkpoint_ns, row.checkpoint_id


def _place(row: Row[Any]) -> tuple[str, str]:
    return row.thread_id, row.checkpoint_ns
