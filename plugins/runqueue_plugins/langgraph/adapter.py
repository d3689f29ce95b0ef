"""Handlers that run a compiled graph: one step at a time, each committed, under the run's lease, before the next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, closing
from typing import Any, cast

from langgraph.checkpoint.serde.base import SerializerProtocol

from runqueue import RunContext, SyncRunContext
from runqueue_plugins.langgraph import plan, threads
from runqueue_plugins.langgraph.asaver import AsyncGraphSaver
from runqueue_plugins.langgraph.plan import ASKED, Graph, Output, jsonable
from runqueue_plugins.langgraph.saver import GraphSaver

STREAM: dict[str, Any] = {"stream_mode": ["updates", "values"], "durability": "sync"}


def graph_handler(
    graph: Graph,
    *,
    config: Mapping[str, Any] | None = None,
    context: Callable[[RunContext], Any] | None = None,
    result: Callable[[Any], Any] = jsonable,
    serde: SerializerProtocol | None = None,
) -> Callable[[RunContext], Awaitable[Any]]:
    """A handler that runs a compiled graph: `queue.handler("agent")(graph_handler(graph))`.

    A run's input is the graph's, and its id the thread's, unless `on_thread` or `resume` made the input. A run that is
    tried again goes on after the last step that was committed. `config` is merged into the graph's (`recursion_limit`,
    `callbacks`), `context` makes its context, `result` makes JSON of its output. A stop request is heeded between
    steps. Raises InvalidRun for a graph with another checkpointer, or with static breakpoints.
    """
    plan.check(graph)

    async def handle(run: RunContext) -> Any:
        order, output = threads.order(run.id, run.input), Output()
        saver = AsyncGraphSaver(run, serde=serde)
        bound = graph.copy({"checkpointer": saver})
        given: Any = plan.config(run, order, config or {})
        newest = await saver.aget_tuple(given)
        if order.answers is None:
            start = plan.feed(run, order, newest)
        else:
            taken = await saver.answers(order.thread_id)
            if run.checkpoint is None:
                pending = {x.id for x in (await bound.aget_state(given)).interrupts}
                before = plan.first_answers(order, pending, taken)
                async with run.transaction() as tx:
                    await tx.save_checkpoint({ASKED: before})
            start = plan.answer(run, order, newest, taken)
        run.raise_if_cancelled()
        made = context(run) if context else None
        stream = cast(AsyncGenerator[Any], bound.astream(start, given, context=made, **STREAM))
        async with aclosing(stream) as steps:
            async for mode, payload in steps:
                output.hear(mode, payload)
                run.raise_if_cancelled()
        return output.result(order, result)

    return handle


def sync_graph_handler(
    graph: Graph,
    *,
    config: Mapping[str, Any] | None = None,
    context: Callable[[SyncRunContext], Any] | None = None,
    result: Callable[[Any], Any] = jsonable,
    serde: SerializerProtocol | None = None,
) -> Callable[[SyncRunContext], Any]:
    """As `graph_handler`, for graphs of plain functions: the handler runs in a thread of its own."""
    plan.check(graph)

    def handle(run: SyncRunContext) -> Any:
        order, output = threads.order(run.id, run.input), Output()
        saver = GraphSaver(run, serde=serde)
        bound = graph.copy({"checkpointer": saver})
        given: Any = plan.config(run, order, config or {})
        newest = saver.get_tuple(given)
        if order.answers is None:
            start = plan.feed(run, order, newest)
        else:
            taken = saver.answers(order.thread_id)
            if run.checkpoint is None:
                pending = {x.id for x in bound.get_state(given).interrupts}
                before = plan.first_answers(order, pending, taken)
                with run.transaction() as tx:
                    tx.save_checkpoint({ASKED: before})
            start = plan.answer(run, order, newest, taken)
        run.raise_if_cancelled()
        made = context(run) if context else None
        stream = cast(Generator[Any], bound.stream(start, given, context=made, **STREAM))
        with closing(stream) as steps:
            for mode, payload in steps:
                output.hear(mode, payload)
                run.raise_if_cancelled()
        return output.result(order, result)

    return handle
