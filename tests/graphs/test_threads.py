"""Threads: named ones go on from run to run, a retried run gives its input once, and many at a time do not mix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from graphs.made import chain, node
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.runtime import get_runtime
from langgraph.types import Interrupt
from sqlalchemy import create_engine
from support.effects import Effects
from support.fleet import slow
from support.here import running
from support.tools import eventually

from runqueue import RunQueue, Settings, Worker
from runqueue_plugins.langgraph import GraphSaver, Held, graph_handler, on_thread, sync_graph_handler


def config(thread_id: Any) -> Any:
    return {"configurable": {"thread_id": str(thread_id)}}


@pytest.mark.parametrize("handler", [graph_handler, slow(sync_graph_handler)])
def test_a_retried_turn_of_a_conversation_is_heard_once(handler: Any, queue: RunQueue, fx: Effects) -> None:
    def reply(state: Any) -> dict[str, Any]:
        if len(state["said"]) == 2 and not fx.is_open("failed"):
            fx.open("failed")
            raise RuntimeError("the model is overloaded")
        return {"done": [f"re: {state['said'][-1]}"]}

    queue.handler("chat")(handler(chain(("reply", reply)).compile()))
    for said in ("hello", "and?", "bye"):
        run = queue.enqueue("chat", on_thread("t1", {"said": [said]}), tenant_id="acme")
        Worker(queue).drain(20)
    assert queue.get(run.id).result == {"said": ["hello", "and?", "bye"], "done": ["re: hello", "re: and?", "re: bye"]}
    assert fx.is_open("failed")


def test_threads_of_tenants_are_apart(queue: RunQueue) -> None:
    queue.handler("chat")(graph_handler(chain(("reply", lambda state: {"done": ["r"]})).compile()))
    runs = [queue.enqueue("chat", on_thread("t1", {"said": [x]}), tenant_id=x) for x in ("acme", "other")]
    Worker(queue).drain(20)
    assert [queue.get(run.id).result["said"] for run in runs] == [["acme"], ["other"]]
    for tenant in ("acme", "other"):
        saver = GraphSaver(queue, tenant_id=tenant)
        assert [x.config["configurable"]["thread_id"] for x in saver.list(None)] == ["t1"] * 3
        found = saver.get_tuple(config("t1"))
        assert found is not None
        assert found.checkpoint["channel_values"]["said"] == [tenant]
    GraphSaver(queue, tenant_id="acme").delete_thread("t1")
    assert GraphSaver(queue, tenant_id="acme").get_tuple(config("t1")) is None
    assert GraphSaver(queue, tenant_id="other").get_tuple(config("t1")) is not None


def test_tenants_with_the_same_ids_and_versions_are_apart(queue: RunQueue) -> None:
    """Ids and versions are random, but nothing depends on that."""
    checkpoint = empty_checkpoint() | {"channel_versions": {"x": "1"}}
    for tenant in ("acme", "other"):
        queue.enqueue("graph", tenant_id=tenant)
    for claimed in queue.claim("test", limit=2, lease=60):
        saver = GraphSaver(Held(queue, claimed))
        mine: Any = checkpoint | {"channel_values": {"x": saver.tenant_id}}
        stored = saver.put(config("t"), mine, {"source": "loop"}, {"x": "1"})
        saver.put_writes(
            stored, [("x", saver.tenant_id), ("__interrupt__", [Interrupt("?", id=saver.tenant_id)])], "task"
        )
        queue.complete(claimed.lease)
    for tenant in ("acme", "other"):
        saver = GraphSaver(queue, tenant_id=tenant)
        [found] = saver.list(None)
        assert found.checkpoint["channel_values"] == {"x": tenant}
        assert [value for _, channel, value in found.pending_writes or () if channel == "x"] == [tenant]
        assert saver.answers("t") == {tenant: 0}
    GraphSaver(queue, tenant_id="acme").copy_thread("t", "copy")
    GraphSaver(queue, tenant_id="acme").prune(["t"], strategy="delete")
    assert len(list(GraphSaver(queue, tenant_id="acme").list(None))) == 1
    assert len(list(GraphSaver(queue, tenant_id="other").list(None))) == 1


def test_nodes_get_their_run_and_context(queue: RunQueue) -> None:
    def act(state: Any, config: RunnableConfig) -> dict[str, Any]:
        run = config["configurable"]["run"]
        return {"done": [str(run.id), get_runtime().context, config["configurable"]["extra"]]}

    graph = chain(("act", act)).compile()
    given = {"configurable": {"extra": "e"}}
    queue.handler("graph")(graph_handler(graph, config=given, context=lambda run: run.tenant_id))
    run = queue.enqueue("graph", {"topic": "x"}, tenant_id="acme")
    Worker(queue).drain(20)
    assert queue.get(run.id).result["done"] == [str(run.id), "acme", "e"]


def test_twenty_threads_have_savers_of_their_own(url: str, settings: Settings) -> None:
    """The same graph and the same thread id in twenty runs of twenty tenants, all at once."""
    engine = create_engine(url, pool_size=20, max_overflow=20)
    queue = RunQueue(engine, settings=settings)
    steps = [(f"n{n}", lambda state, n=n: {"done": [f"{state['topic']} {n}"]}) for n in range(5)]
    graph = chain(*steps).compile()
    for n in range(20):
        queue.enqueue("graph", {"topic": str(n)}, tenant_id=f"tenant {n}")
    claimed = queue.claim("test", limit=20, lease=60)

    def execute(n: int) -> Any:
        saver = GraphSaver(Held(queue, claimed[n]))
        bound = graph.copy({"checkpointer": saver})
        output = bound.invoke({"topic": str(n)}, config("same"), durability="sync")
        queue.complete(claimed[n].lease)
        return output, [x.metadata["step"] for x in GraphSaver(queue, tenant_id=saver.tenant_id).list(config("same"))]

    with ThreadPoolExecutor(20) as pool:
        for n, (output, history) in enumerate(pool.map(execute, range(20))):
            assert output["done"] == [f"{n} {step}" for step in range(5)]
            assert history == [5, 4, 3, 2, 1, 0, -1]
    engine.dispose()


@pytest.mark.parametrize("handler", [graph_handler, slow(sync_graph_handler)])
def test_twenty_runs_in_one_worker(handler: Any, queue: RunQueue, fx: Effects) -> None:
    steps = [(f"n{n}", lambda state, n=n: {"done": [f"{state['topic']} {n}"]}) for n in range(3)]
    queue.handler("graph")(handler(chain(*steps).compile()))
    runs = [queue.enqueue("graph", {"topic": str(n)}, tenant_id="acme") for n in range(20)]
    Worker(queue, concurrency=20).drain(30)
    for n, run in enumerate(runs):
        assert queue.get(run.id).result == {"topic": str(n), "done": [f"{n} {step}" for step in range(3)], "said": []}


@pytest.mark.parametrize("handler", [graph_handler, sync_graph_handler])
def test_a_cancel_is_heeded_between_steps(handler: Any, queue: RunQueue, fx: Effects) -> None:
    def deaf(state: Any, config: RunnableConfig) -> dict[str, Any]:
        """A node that finishes all the same, once the run was told to stop."""
        run = config["configurable"]["run"]
        fx.note(run, "one")
        eventually(lambda: run.cancel_requested, 10, what="the stop request")
        return {"done": ["one"]}

    graph = chain(("one", deaf), ("two", node(fx, "two"))).compile()
    queue.handler("graph", cancel_grace=20)(handler(graph))
    run = queue.enqueue("graph", {}, tenant_id="acme")
    with running(Worker(queue), drain=5):
        fx_started(fx, run)
        queue.cancel(run.id)
        assert queue.wait(run.id, 10).status == "cancelled"
    assert fx.attempts(run.id, "two") == []
    found = GraphSaver(queue, tenant_id="acme").get_tuple(config(run.id))
    assert found is not None
    assert found.checkpoint["channel_values"]["done"] == ["one"]


@pytest.mark.parametrize("handler", [graph_handler, slow(sync_graph_handler)])
def test_a_drain_gives_the_run_back_and_no_finished_node_runs_again(handler: Any, queue: RunQueue, fx: Effects) -> None:
    graph = chain(("one", node(fx, "one")), ("two", node(fx, "two", "two")), ("three", node(fx, "three"))).compile()
    queue.handler("graph")(handler(graph))
    run = queue.enqueue("graph", {}, tenant_id="acme")
    with running(Worker(queue)):
        fx_started(fx, run, "two")
    assert (queue.get(run.id).status, queue.get(run.id).attempts) == ("pending", 0)
    fx.open("two")
    with running(Worker(queue)):
        assert queue.wait(run.id, 10).result["done"] == ["one", "two", "three"]
    counts = [len(fx.attempts(run.id, f"{name} done")) for name in ("one", "two", "three")]
    assert counts == [1, 1, 1]


def fx_started(fx: Effects, run: Any, name: str = "one") -> None:
    """Wait until a node was entered."""
    eventually(lambda: fx.attempts(run.id, name), 10, what=f"the start of {name}")
