"""A graph whose lease was lost cannot write: the fence decides, and the tables stay as they were."""

from __future__ import annotations

from typing import Any

import pytest
from graphs.made import chain
from sqlalchemy import Engine, select
from support.tools import age

from runqueue import AsyncRunQueue, ClaimedRun, LeaseLost, RunQueue
from runqueue_plugins.langgraph import AsyncGraphSaver, AsyncHeld, GraphSaver, Held
from runqueue_plugins.langgraph.tables import GraphTables


def rows(engine: Engine, t: GraphTables) -> dict[str, list[Any]]:
    """All that is stored of graphs."""
    with engine.connect() as connection:
        return {
            table.name: connection.execute(select(table).order_by(*table.primary_key)).all()
            for table in t.metadata.sorted_tables
        }


class Thief:
    """A node that takes the run's lease from the very process that executes it, and its like before and after."""

    def __init__(self, queue: RunQueue, t: GraphTables, run: Any) -> None:
        self.queue, self.t, self.run = queue, t, run
        self.new_holder: ClaimedRun | None = None
        self.seen: dict[str, list[Any]] = {}
        self.after: list[str] = []

    def graph(self) -> Any:
        def steal(state: Any) -> dict[str, Any]:
            age(self.queue.engine, self.run.id)
            self.queue.reap()
            [self.new_holder] = self.queue.claim("thief", lease=60)
            self.seen = rows(self.queue.engine, self.t)
            return {"done": ["steal"]}

        def later(state: Any) -> dict[str, Any]:
            self.after.append("later")
            return {"done": ["later"]}

        return chain(("first", lambda state: {"done": ["first"]}), ("steal", steal), ("later", later))

    def check(self) -> None:
        assert self.new_holder is not None
        assert self.seen["agent_graph_checkpoints"], "the graph wrote while the lease was held"
        assert rows(self.queue.engine, self.t) == self.seen
        assert self.after == []
        self.queue.complete(self.new_holder.lease)


CONFIG: Any = {"configurable": {"thread_id": "a"}}


def test_zombie_graph_cannot_write(queue: RunQueue, t: GraphTables) -> None:
    run = queue.enqueue("graph", tenant_id="acme")
    [claimed] = queue.claim("test", lease=60)
    thief = Thief(queue, t, run)
    graph = thief.graph().compile(checkpointer=GraphSaver(Held(queue, claimed)))
    with pytest.raises(LeaseLost):
        graph.invoke({"topic": "x"}, CONFIG, durability="sync")
    thief.check()


async def test_async_zombie_graph_cannot_write(queue: RunQueue, aqueue: AsyncRunQueue, t: GraphTables) -> None:
    run = queue.enqueue("graph", tenant_id="acme")
    [claimed] = await aqueue.claim("test", lease=60)
    thief = Thief(queue, t, run)
    graph = thief.graph().compile(checkpointer=AsyncGraphSaver(AsyncHeld(aqueue, claimed)))
    with pytest.raises(LeaseLost):
        await graph.ainvoke({"topic": "x"}, CONFIG, durability="sync")
    thief.check()


def test_no_method_of_a_zombie_changes_anything(queue: RunQueue, t: GraphTables) -> None:
    run = queue.enqueue("graph", tenant_id="acme")
    [claimed] = queue.claim("test", lease=60)
    saver = GraphSaver(Held(queue, claimed))
    graph = chain(("first", lambda state: {"done": ["first"]})).compile(checkpointer=saver)
    graph.invoke({"topic": "x"}, CONFIG)
    newest = saver.get_tuple(CONFIG)
    assert newest is not None
    age(queue.engine, run.id)
    queue.reap()
    [new_holder] = queue.claim("other", lease=60)
    before = rows(queue.engine, t)
    assert all(before.values())
    for act in (
        lambda: saver.put(newest.config, newest.checkpoint | {"id": "zzz"}, newest.metadata, {}),  # type: ignore[arg-type, typeddict-item]
        lambda: saver.put_writes(newest.config, [("done", ["zombie"])], "task"),
        lambda: saver.delete_thread("a"),
        lambda: saver.delete_for_runs([str(run.id)]),
        lambda: saver.copy_thread("a", "b"),
        lambda: saver.prune(["a"]),
        lambda: saver.prune(["a"], strategy="delete"),
    ):
        with pytest.raises(LeaseLost):
            act()
    assert rows(queue.engine, t) == before
    queue.complete(new_holder.lease)
