"""The checkpoint saver for `graph.ainvoke`, `graph.astream` and `graph.aget_state`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
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

from runqueue import AsyncRunQueue
from runqueue_plugins.langgraph import codec, query, store
from runqueue_plugins.langgraph.access import AsyncHolder, areading, atidying, awriting, tenant_of
from runqueue_plugins.langgraph.tables import graph_tables


class AsyncGraphSaver(BaseCheckpointSaver[str]):
    """As GraphSaver, for a RunContext or an `AsyncHeld`, and over an AsyncRunQueue. Belongs to their event loop."""

    def __init__(
        self,
        source: AsyncHolder | AsyncRunQueue,
        *,
        tenant_id: str | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self.source = source
        self.tenant_id = tenant_of(source, tenant_id)
        self._t = graph_tables(source.schema)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, else the newest. Raises InvalidRun without a thread."""
        asked = query.one(self.tenant_id, config)
        async with areading(self.source) as connection:
            return next(iter(await connection.run_sync(store.read, self._t, self.serde, self.tenant_id, **asked)), None)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's word
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, newest first in each namespace of each thread; read page by page, none held while you iterate.

        `filter` compares with the metadata, the way of jsonb's `@>`.
        """
        asked, after = query.many(config, filter, before), None
        while limit is None or limit > 0:
            size = store.PAGE if limit is None else min(limit, store.PAGE)
            async with areading(self.source) as connection:
                page = await connection.run_sync(
                    store.read, self._t, self.serde, self.tenant_id, **asked, after=after, limit=size
                )
            for found in page:
                yield found
            if len(page) < size:
                return
            after, limit = query.key(page[-1]), None if limit is None else limit - size

    async def aput(
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
        async with awriting(self.source) as connection:
            await connection.run_sync(store.put, self._t, row, values)
        return query.stored(row)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote. Raises LeaseLost."""
        where = codec.place(self.tenant_id, config) | {"checkpoint_id": config["configurable"]["checkpoint_id"]}
        rows = codec.write_rows(self.serde, where, writes, task_id, task_path)
        async with awriting(self.source) as connection:
            await connection.run_sync(store.put_writes, self._t, rows, codec.replaces(writes))

    async def answers(self, thread_id: str) -> dict[str, int]:
        """By the id of each interrupt of a thread, how many answers the task that asked has taken."""
        async with areading(self.source) as connection:
            return await connection.run_sync(store.answers, self._t, self.serde, self.tenant_id, thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread. Over a queue this is not fenced: no run may be executing it."""
        async with atidying(self.source) as connection:
            await connection.run_sync(store.delete_threads, self._t, self.tenant_id, [thread_id])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs have made. Over a queue this is not fenced, as `delete_thread`."""
        async with atidying(self.source) as connection:
            await connection.run_sync(store.delete_for_runs, self._t, self.tenant_id, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, all of it, to another of the same tenant."""
        async with atidying(self.source) as connection:
            await connection.run_sync(store.copy_thread, self._t, self.tenant_id, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep of each namespace the newest checkpoint, and what its delta channels need; or "delete" all.

        Over a queue this is not fenced, as `delete_thread`.
        """
        async with atidying(self.source) as connection:
            await connection.run_sync(store.prune, self._t, self.tenant_id, thread_ids, strategy)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version after `current`."""
        del channel
        return query.next_version(current)
