"""Reading and tidying up from the application, outside of any run."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypedDict

import pytest
from graphs.made import chain
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from sqlalchemy import func, select
from support.plans import explain

from runqueue import AsyncRunQueue, InvalidRun, RunQueue, RunqueueError
from runqueue_plugins.langgraph import AsyncGraphSaver, AsyncHeld, GraphSaver, Held, statements
from runqueue_plugins.langgraph.tables import GraphTables

CONFIG: Any = {"configurable": {"thread_id": "a"}}


class Log(TypedDict):
    """A state that is kept as what was added to it, with a snapshot now and then."""

    log: Annotated[list[str], DeltaChannel(lambda state, writes: sum(writes, state), snapshot_frequency=4)]


DELTA = StateGraph(Log)
DELTA.add_node("echo", lambda state: {"log": [f"out {len(state['log'])}"]})
DELTA.add_edge(START, "echo")
GRAPH = chain(("one", lambda state: {"done": ["one"]}), ("two", lambda state: {"done": ["two"]}))


@pytest.fixture
def held(queue: RunQueue) -> Any:
    """A saver that may write, for a run that is done after the test."""
    queue.enqueue("graph", tenant_id="acme")
    [claimed] = queue.claim("test", lease=60)
    yield GraphSaver(Held(queue, claimed))
    queue.complete(claimed.lease)


def count(queue: RunQueue, t: GraphTables) -> dict[str, int]:
    """How many rows each table has."""
    with queue.engine.connect() as connection:
        return {
            table.name.removeprefix("agent_graph_"): connection.execute(
                select(func.count()).select_from(table)
            ).scalar_one()
            for table in t.metadata.sorted_tables
        }


def test_application_reads_states_and_cannot_write(queue: RunQueue, held: GraphSaver, t: GraphTables) -> None:
    GRAPH.compile(checkpointer=held).invoke({"topic": "x"}, CONFIG)
    before = count(queue, t)
    graph = GRAPH.compile(checkpointer=GraphSaver(queue, tenant_id="acme"))
    assert graph.get_state(CONFIG).values == {"topic": "x", "done": ["one", "two"], "said": []}
    assert [x.next for x in graph.get_state_history(CONFIG)] == [(), ("two",), ("one",), ("__start__",)]
    with pytest.raises(RunqueueError, match="graph_handler"):
        graph.update_state(CONFIG, {"topic": "y"})
    with pytest.raises(RunqueueError, match="graph_handler"):
        graph.invoke({"topic": "y"}, CONFIG)
    assert count(queue, t) == before


async def test_async_application_reads_states_and_cannot_write(aqueue: AsyncRunQueue) -> None:
    await aqueue.enqueue("graph", tenant_id="acme")
    [claimed] = await aqueue.claim("test", lease=60)
    await GRAPH.compile(checkpointer=AsyncGraphSaver(AsyncHeld(aqueue, claimed))).ainvoke({"topic": "x"}, CONFIG)
    await aqueue.complete(claimed.lease)
    saver = AsyncGraphSaver(aqueue, tenant_id="acme")
    graph = GRAPH.compile(checkpointer=saver)
    assert (await graph.aget_state(CONFIG)).values["done"] == ["one", "two"]
    assert [x.next async for x in graph.aget_state_history(CONFIG)] == [(), ("two",), ("one",), ("__start__",)]
    with pytest.raises(RunqueueError, match="graph_handler"):
        await graph.aupdate_state(CONFIG, {"topic": "y"})
    await saver.adelete_thread("a")
    assert (await graph.aget_state(CONFIG)).values == {}


def test_saver_over_a_queue_needs_a_tenant_and_a_run_has_its_own(queue: RunQueue, held: GraphSaver) -> None:
    with pytest.raises(InvalidRun, match="tenant_id"):
        GraphSaver(queue)
    with pytest.raises(InvalidRun, match="tenant_id"):
        GraphSaver(held.source, tenant_id="other")
    with pytest.raises(InvalidRun, match="thread_id"):
        held.get_tuple({"configurable": {}})


def test_long_histories_are_read_page_by_page(held: GraphSaver) -> None:
    made = []
    for step in range(120):
        config: Any = {"configurable": {"thread_id": "a", "checkpoint_ns": "" if step % 2 else "inner"}}
        held.put(config, empty_checkpoint(), {"source": "loop", "step": step}, {})
        made.append(step)
    newest = [*reversed(made)]
    inner, outer = [s for s in newest if s % 2 == 0], [s for s in newest if s % 2]
    assert [x.metadata["step"] for x in held.list(CONFIG)] == inner + outer
    assert [x.metadata["step"] for x in held.list(CONFIG, limit=70)] == (inner + outer)[:70]
    assert [x.metadata["step"] for x in held.list(CONFIG, filter={"step": 7})] == [7]
    assert list(held.list(CONFIG, limit=0)) == []
    only: Any = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}
    found = list(held.list(only))
    assert [x.metadata["step"] for x in found] == outer
    assert [x.metadata["step"] for x in held.list(only, before=found[9].config)] == outer[10:]


def test_a_fork_of_a_thread_has_values_of_its_own(held: GraphSaver) -> None:
    graph = chain(("say", lambda state: {"done": [state["topic"]]})).compile(checkpointer=held)
    graph.invoke({"topic": "first"}, CONFIG)
    start = next(x.config for x in graph.get_state_history(CONFIG) if x.next == ("say",))
    fork = graph.update_state(start, {"topic": "other"})
    graph.invoke(None, fork)
    ends = [x.values for x in graph.get_state_history(CONFIG) if x.next == ()]
    assert [(x["topic"], x["done"]) for x in ends] == [("other", ["other"]), ("first", ["first"])]


def test_tidying_up_leaves_no_orphans(queue: RunQueue, held: GraphSaver, t: GraphTables) -> None:
    graph = GRAPH.compile(checkpointer=held)
    for thread, run_id in (("a", "r1"), ("a", "r2"), ("b", "r1")):
        graph.invoke({"topic": run_id}, {"configurable": {"thread_id": thread}, "metadata": {"run_id": run_id}})
    saver = GraphSaver(queue, tenant_id="acme")
    newest = saver.get_tuple(CONFIG)
    saver.prune(["a"])
    assert newest
    assert list(saver.list(CONFIG)) == [newest]
    with queue.engine.connect() as connection:
        used = connection.execute(select(func.count()).where(t.values.c.thread_id == "a")).scalar_one()
    assert used == len(newest.checkpoint["channel_versions"])
    saver.delete_for_runs(["r1"])
    assert {x.config["configurable"]["thread_id"] for x in saver.list(None)} == {"a"}
    saver.prune(["a"], strategy="delete")
    assert count(queue, t) == {"checkpoints": 0, "values": 0, "writes": 0}
    with pytest.raises(InvalidRun, match="strategy"):
        saver.prune(["a"], strategy="keep_best")


def test_delta_channels_survive_pruning_and_copying(queue: RunQueue, held: GraphSaver) -> None:
    graph = DELTA.compile(checkpointer=held)
    for n in range(7):
        graph.invoke({"log": [f"in {n}"]}, CONFIG)
    whole = graph.get_state(CONFIG).values
    assert len(whole["log"]) == 14
    held.prune(["a"])
    assert 1 < len(list(held.list(CONFIG))) < 14
    held.copy_thread("a", "b")
    for thread in ("a", "b"):
        assert graph.get_state({"configurable": {"thread_id": thread}}).values == whole


def test_reads_cost_what_they_return(queue: RunQueue, held: GraphSaver, t: GraphTables) -> None:
    graph = GRAPH.compile(checkpointer=held)
    graph.invoke({"topic": "x"}, CONFIG)
    for n in range(100):
        held.copy_thread("a", f"t{n}")
    here: Any = {"thread_id": "t7", "checkpoint_ns": ""}
    with queue.engine.connect() as connection:
        connection.exec_driver_sql("analyze runqueue.agent_graph_checkpoints")
        connection.exec_driver_sql("analyze runqueue.agent_graph_values")
        connection.exec_driver_sql("analyze runqueue.agent_graph_writes")
        connection.rollback()
        newest = explain(connection, statements.checkpoints(t, "acme", where=here, limit=1), {})
        [row] = connection.execute(statements.checkpoints(t, "acme", where=here, limit=1)).all()
        versions = json.loads(row.versions)
        channels = [*versions]
        bound = {"thread_id": ["t7"] * len(channels), "checkpoint_ns": [""] * len(channels), "tenant_id": "acme"}
        bound |= {"channel": channels, "version": [versions[x] for x in channels]}
        values = explain(connection, statements.values(t), bound)
        key = {"tenant_id": "acme", "thread_id": ["t7"], "checkpoint_ns": [""], "checkpoint_id": [row.checkpoint_id]}
        writes = explain(connection, statements.writes(t), key)
        answers = explain(connection, statements.asked_or_answered(t), {"tenant_id": "acme", "thread_id": "t7"})
    for plan, rows in ((newest, 1), (values, len(channels)), (writes, 10), (answers, 5)):
        assert not plan.whole_tables, str(plan)
        assert plan.rows <= rows, str(plan)
