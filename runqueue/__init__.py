"""A durable queue for AI-agent runs, inside the PostgreSQL that a SQLAlchemy application already has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runqueue.errors import (
    Discard,
    IdempotencyConflict,
    InvalidRun,
    LeaseLost,
    PluginError,
    Retry,
    RunCancelled,
    RunNotFound,
    RunqueueError,
    SchemaOutdated,
    Snooze,
    Timeout,
)
from runqueue.settings import Settings
from runqueue.types import (
    ClaimedRun,
    Event,
    Explanation,
    Heartbeat,
    Lease,
    NewRun,
    Page,
    QueueStats,
    Reaped,
    Run,
    RunStatus,
    Undecodable,
)

if TYPE_CHECKING:
    from runqueue.aio import AsyncRunQueue
    from runqueue.decisions import (
        CheckpointStore,
        ClaimOrder,
        Failure,
        KeepLast,
        PluginInfo,
        PluginSchema,
        RetryDelay,
        Tenant,
        TenantPolicy,
    )
    from runqueue.hooks import hookimpl, hookspec
    from runqueue.policies import ClaimPolicy
    from runqueue.queue import RunQueue
    from runqueue.worker import RunContext, SyncRunContext, Worker

__version__ = "0.1.0"

_LAZY = {
    "AsyncRunQueue": "runqueue.aio",
    **dict.fromkeys(
        (
            "CheckpointStore",
            "ClaimOrder",
            "Failure",
            "KeepLast",
            "PluginInfo",
            "PluginSchema",
            "RetryDelay",
            "Tenant",
            "TenantPolicy",
        ),
        "runqueue.decisions",
    ),
    "ClaimPolicy": "runqueue.policies",
    "RunContext": "runqueue.worker",
    "RunQueue": "runqueue.queue",
    "SyncRunContext": "runqueue.worker",
    "Worker": "runqueue.worker",
    "hookimpl": "runqueue.hooks",
    "hookspec": "runqueue.hooks",
}
"""Names whose modules import SQLAlchemy: they are loaded when first used, so that `runqueue --help` need not wait."""

__all__ = [
    "AsyncRunQueue",
    "CheckpointStore",
    "ClaimOrder",
    "ClaimPolicy",
    "ClaimedRun",
    "Discard",
    "Event",
    "Explanation",
    "Failure",
    "Heartbeat",
    "IdempotencyConflict",
    "InvalidRun",
    "KeepLast",
    "Lease",
    "LeaseLost",
    "NewRun",
    "Page",
    "PluginError",
    "PluginInfo",
    "PluginSchema",
    "QueueStats",
    "Reaped",
    "Retry",
    "RetryDelay",
    "Run",
    "RunCancelled",
    "RunContext",
    "RunNotFound",
    "RunQueue",
    "RunStatus",
    "RunqueueError",
    "SchemaOutdated",
    "Settings",
    "Snooze",
    "SyncRunContext",
    "Tenant",
    "TenantPolicy",
    "Timeout",
    "Undecodable",
    "Worker",
    "hookimpl",
    "hookspec",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
