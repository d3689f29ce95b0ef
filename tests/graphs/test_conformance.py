"""LangGraph's own conformance suite, on both savers: all capabilities, the base ones and the extended ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES, BASE_CAPABILITIES

from runqueue import AsyncRunQueue, RunQueue
from runqueue_plugins.langgraph import AsyncGraphSaver, AsyncHeld, GraphSaver, Held

LEASE = 60


class InThreads(BaseCheckpointSaver[str]):
    """The suite is async: this calls the sync saver from it, in threads, as LangGraph's sync loop does."""

    def __init__(self, saver: GraphSaver) -> None:
        super().__init__()
        self.saver = saver

    async def aput(self, *args: Any) -> Any:
        return await asyncio.to_thread(self.saver.put, *args)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.to_thread(self.saver.put_writes, *args, **kwargs)

    async def aget_tuple(self, *args: Any) -> Any:
        return await asyncio.to_thread(self.saver.get_tuple, *args)

    async def alist(self, *args: Any, **kwargs: Any) -> Any:
        for found in await asyncio.to_thread(lambda: list(self.saver.list(*args, **kwargs))):
            yield found

    async def adelete_thread(self, *args: Any) -> None:
        await asyncio.to_thread(self.saver.delete_thread, *args)

    async def adelete_for_runs(self, *args: Any) -> None:
        await asyncio.to_thread(self.saver.delete_for_runs, *args)

    async def acopy_thread(self, *args: Any) -> None:
        await asyncio.to_thread(self.saver.copy_thread, *args)

    async def aprune(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.to_thread(self.saver.prune, *args, **kwargs)


async def check(saver: BaseCheckpointSaver[Any], name: str) -> None:
    @checkpointer_test(name=name)
    async def factory() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield saver

    report = await validate(factory)
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert not failures
    assert report.passed_all_base()
    assert {name for name, result in report.results.items() if result.passed} == {x.value for x in ALL_CAPABILITIES}
    assert sum(result.tests_passed for result in report.results.values()) > 8 * len(BASE_CAPABILITIES)


async def test_async_saver_conforms(aqueue: AsyncRunQueue) -> None:
    await aqueue.enqueue("graph", tenant_id="acme")
    [claimed] = await aqueue.claim("test", lease=LEASE)
    await check(AsyncGraphSaver(AsyncHeld(aqueue, claimed)), "AsyncGraphSaver")
    await aqueue.complete(claimed.lease)


async def test_sync_saver_conforms(queue: RunQueue) -> None:
    queue.enqueue("graph", tenant_id="acme")
    [claimed] = queue.claim("test", lease=LEASE)
    await check(InThreads(GraphSaver(Held(queue, claimed))), "GraphSaver")
    queue.complete(claimed.lease)
