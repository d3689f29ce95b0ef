"""The checkpoint saver for `graph.invoke`, `graph.stream` and `graph.get_state`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from runqueue import RunQueue
from runqueue_plugins.langgraph import codec, query, store
from runqueue_plugins.langgraph.access import Holder, reading, tenant_of, tidying, writing
from runqueue_plugins.langgraph.tables import graph_tables


class GraphSaver(BaseCheckpointSaver[str]):
    """Keeps graph state for a run, or over a queue for the application, which then can only read and tidy up.

    For a run (a SyncRunContext or a `Held`) each call is one fenced transaction: it raises LeaseLost, and writes
    nothing, once the lease is lost. Safe in threads. Over a RunQueue, `tenant_id` says whose threads it reaches.
    """

    def __init__(
        self, source: Holder | RunQueue, *, tenant_id: str | None = None, serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde)
        self.source = source
        self.tenant_id = tenant_of(source, tenant_id)
        self._t = graph_tables(source.schema)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, else the newest. Raises InvalidRun without a thread."""
        asked = query.one(self.tenant_id, config)
        with reading(self.source) as connection:
            return next(iter(store.read(connection, self._t, self.serde, self.tenant_id, **asked)), None)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's word
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first in each namespace of each thread; read page by page, none held while you iterate.

        `filter` compares with the metadata, the way of jsonb's `@>`.
        """
        asked, after = query.many(config, filter, before), None
        while limit is None or limit > 0:
            size = store.PAGE if limit is None else min(limit, store.PAGE)
            with reading(self.source) as connection:
                page = store.read(connection, self._t, self.serde, self.tenant_id, **asked, after=after, limit=size)
            yield from page
            if len(page) < size:
                return
            after, limit = query.key(page[-1]), None if limit is None else limit - size

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. Raises LeaseLost."""
        where = codec.place(self.tenant_id, config)
        row = codec.checkpoint_row(self.serde, where, config, checkpoint, metadata)
        values = codec.value_rows(self.serde, where, checkpoint, new_versions)
        with writing(self.source) as connection:
            store.put(connection, self._t, row, values)
        return query.stored(row)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote. Raises LeaseLost."""
        where = codec.place(self.tenant_id, config) | {"checkpoint_id": config["configurable"]["checkpoint_id"]}
        rows = codec.write_rows(self.serde, where, writes, task_id, task_path)
        with writing(self.source) as connection:
            store.put_writes(connection, self._t, rows, codec.replaces(writes))

    def answers(self, thread_id: str) -> dict[str, int]:
        """By the id of each interrupt of a thread, how many answers the task that asked has taken."""
        with reading(self.source) as connection:
            return store.answers(connection, self._t, self.serde, self.tenant_id, thread_id)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread. Over a queue this is not fenced: no run may be executing it."""
        with tidying(self.source) as connection:
            store.delete_threads(connection, self._t, self.tenant_id, [thread_id])

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs have made. Over a queue this is not fenced, as `delete_thread`."""
        with tidying(self.source) as connection:
            store.delete_for_runs(connection, self._t, self.tenant_id, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, all of it, to another of the same tenant."""
        with tidying(self.source) as connection:
            store.copy_thread(connection, self._t, self.tenant_id, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep of each namespace the newest checkpoint, and what its delta channels need; or "delete" all.

        Over a queue this is not fenced, as `delete_thread`.
        """
        with tidying(self.source) as connection:
            store.prune(connection, self._t, self.tenant_id, thread_ids, strategy)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version after `current`."""
        del channel
        return query.next_version(current)
