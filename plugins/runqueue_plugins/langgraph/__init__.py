"""LangGraph graphs as runs: a checkpoint saver that writes under the run's lease, and handlers that run a graph.

Needs `pip install "runqueue[langgraph]"`, and its tables: `runqueue migrate --plugin langgraph`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runqueue import PluginError, PluginSchema, hookimpl

if TYPE_CHECKING:
    from runqueue_plugins.langgraph.access import AsyncHeld, Held
    from runqueue_plugins.langgraph.adapter import graph_handler, sync_graph_handler
    from runqueue_plugins.langgraph.asaver import AsyncGraphSaver
    from runqueue_plugins.langgraph.saver import GraphSaver
    from runqueue_plugins.langgraph.threads import interrupts, on_thread, resume

_LAZY = {
    "AsyncGraphSaver": "asaver",
    "AsyncHeld": "access",
    "GraphSaver": "saver",
    "Held": "access",
    "graph_handler": "adapter",
    "interrupts": "threads",
    "on_thread": "threads",
    "resume": "threads",
    "sync_graph_handler": "adapter",
}
"""LangGraph takes a second to import, and need not be there for `migrate` and for producers."""

__all__ = [
    "AsyncGraphSaver",
    "AsyncHeld",
    "GraphSaver",
    "Held",
    "graph_handler",
    "interrupts",
    "on_thread",
    "resume",
    "sync_graph_handler",
]


@hookimpl
def runqueue_schema(schema: str) -> PluginSchema:
    """The tables of graph state."""
    del schema
    return PluginSchema(migrations="runqueue_migrations:langgraph")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("langgraph", "langchain_core", "pydantic_core"):
            raise
        raise PluginError(f'{name} needs LangGraph: pip install "runqueue[langgraph]"') from error
