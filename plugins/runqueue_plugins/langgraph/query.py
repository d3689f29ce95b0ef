"""What a saver was asked to read, as arguments of a statement."""

from __future__ import annotations

import json
import secrets
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_id

from runqueue_plugins.langgraph.codec import place, plain

NAMES = ("thread_id", "checkpoint_ns", "checkpoint_id")


def one(tenant_id: str, config: RunnableConfig) -> dict[str, Any]:
    """The checkpoint that is named, else the newest of the namespace."""
    where = place(tenant_id, config)
    where.pop("tenant_id")
    if checkpoint_id := get_checkpoint_id(config):
        where["checkpoint_id"] = checkpoint_id
    return {"where": where, "limit": 1}


def many(config: RunnableConfig | None, wanted: dict[str, Any] | None, before: RunnableConfig | None) -> dict[str, Any]:
    """All checkpoints of the thread and the namespace that are named, of any where none is."""
    named = (config or {}).get("configurable", {})
    return {
        "where": {name: str(named[name]) for name in NAMES if named.get(name) is not None},
        "metadata": json.dumps(plain(wanted)) if wanted else None,
        "before": get_checkpoint_id(before) if before else None,
    }


def next_version(current: str | float | None) -> str:
    """A channel's version after `current`. Two branches of a thread that count on from one version never meet."""
    count = 0 if current is None else int(str(current).partition(".")[0])
    return f"{count + 1:032}.{secrets.token_hex(8)}"


def stored(row: dict[str, Any]) -> RunnableConfig:
    """The config of a checkpoint that was stored."""
    return {"configurable": {name: row[name] for name in NAMES}}


def key(found: CheckpointTuple) -> tuple[str, str, str]:
    """Where a page ended."""
    thread_id, checkpoint_ns, checkpoint_id = (found.config["configurable"][name] for name in NAMES)
    return thread_id, checkpoint_ns, checkpoint_id
