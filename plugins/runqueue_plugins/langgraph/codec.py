"""Checkpoints as rows, and rows as checkpoints. Values are encoded by LangGraph's own serializer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Row

from runqueue import InvalidRun

EMPTY = "empty"
"""The type of a channel that has a version and no value."""

Record = dict[str, Any]


def place(tenant_id: str, config: RunnableConfig) -> Record:
    """The thread and the namespace of a config. Raises InvalidRun."""
    configurable = config.get("configurable", {})
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise InvalidRun("thread_id", "must be given in config['configurable']")
    return {
        "tenant_id": tenant_id,
        "thread_id": str(thread_id),
        "checkpoint_ns": configurable.get("checkpoint_ns") or "",
    }


def checkpoint_row(
    serde: SerializerProtocol,
    where: Record,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
) -> Record:
    """A checkpoint without its channels' values."""
    told = cast(dict[str, Any], get_serializable_checkpoint_metadata(config, metadata))
    rest = {name: value for name, value in checkpoint.items() if name not in ("channel_values", "channel_versions")}
    type_, body = serde.dumps_typed(rest)
    run_id = told.get("run_id")
    return where | {
        "checkpoint_id": checkpoint["id"],
        "parent_id": config["configurable"].get("checkpoint_id"),
        "run_id": None if run_id is None else str(run_id),
        "type": type_,
        "body": body,
        "versions_json": json.dumps(checkpoint["channel_versions"]),
        "metadata_json": json.dumps(plain(told)),
    }


def value_rows(
    serde: SerializerProtocol, where: Record, checkpoint: Checkpoint, new_versions: ChannelVersions
) -> list[Record]:
    """The values of the channels that have a new version."""
    values, rows = checkpoint["channel_values"], []
    for channel, version in new_versions.items():
        type_, body = serde.dumps_typed(values[channel]) if channel in values else (EMPTY, None)
        rows.append(where | {"channel": channel, "version": str(version), "type": type_, "body": body})
    return rows


def write_rows(
    serde: SerializerProtocol, where: Record, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> list[Record]:
    """A task's writes. What happened to the task has indexes below zero, so that it never takes a channel's."""
    rows = []
    for position, (channel, value) in enumerate(writes):
        type_, body = serde.dumps_typed(value)
        index = WRITES_IDX_MAP.get(channel, position)
        written = {"task_id": task_id, "idx": index, "task_path": task_path, "channel": channel}
        rows.append(where | written | {"type": type_, "body": body})
    return rows


def replaces(writes: Sequence[tuple[str, Any]]) -> bool:
    """Whether these writes replace older ones of their index: errors, interrupts and answers do."""
    return all(channel in WRITES_IDX_MAP for channel, _ in writes)


def versions_of(row: Row[Any]) -> dict[str, str]:
    """The version of each channel, as a value's key has it."""
    return {channel: str(version) for channel, version in json.loads(row.versions).items()}


def checkpoint_tuple(
    serde: SerializerProtocol, row: Row[Any], values: Mapping[tuple[str, str], Row[Any]], writes: Sequence[Row[Any]]
) -> CheckpointTuple:
    """A checkpoint from its row, the rows of its values by channel and version, and those of its writes."""
    here = {"thread_id": row.thread_id, "checkpoint_ns": row.checkpoint_ns}
    found = ((channel, values.get((channel, version))) for channel, version in versions_of(row).items())
    checkpoint: Any = {
        **serde.loads_typed((row.type, row.body)),
        "channel_versions": json.loads(row.versions),
        "channel_values": {
            channel: serde.loads_typed((value.type, value.body))
            for channel, value in found
            if value is not None and value.type != EMPTY
        },
    }
    ordered = sorted(writes, key=lambda x: writes_sort_key(x.task_path, x.task_id, x.idx))
    return CheckpointTuple(
        config={"configurable": here | {"checkpoint_id": row.checkpoint_id}},
        checkpoint=checkpoint,
        metadata=json.loads(row.metadata),
        parent_config={"configurable": here | {"checkpoint_id": row.parent_id}} if row.parent_id else None,
        pending_writes=[(x.task_id, x.channel, serde.loads_typed((x.type, x.body))) for x in ordered],
    )


def plain(value: Any) -> Any:
    """What of a checkpoint's metadata can be stored as jsonb; a text stands for what cannot."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {_text(name): plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(member) for member in value]
    return _text(value)


def _text(value: Any) -> str:
    return str(value).replace("\0", "").encode(errors="replace").decode()
