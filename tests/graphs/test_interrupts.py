"""Graphs that ask people: the run ends and says what it waits for; another run brings the answer, which counts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from graphs.made import State, asks, chain, node
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from support.effects import Effects
from support.fleet import slow

from runqueue import InvalidRun, Run, RunQueue, Worker
from runqueue_plugins.langgraph import graph_handler, interrupts, resume, sync_graph_handler
from runqueue_plugins.langgraph.threads import order

Go = Callable[..., Run]


@pytest.fixture(params=[graph_handler, slow(sync_graph_handler)], ids=["async", "sync"])
def go(request: pytest.FixtureRequest, queue: RunQueue) -> Go:
    """Run a graph with an input, and give what became of it."""
    made: list[Any] = []

    def go(graph: Any, input: Any, **options: Any) -> Run:
        if graph not in made:
            made.append(graph)
            queue.handler(f"graph {len(made)}")(request.param(graph))
        kind = f"graph {made.index(graph) + 1}"
        run = queue.enqueue(kind, input, **({"tenant_id": "acme"} | options))
        Worker(queue).drain(20)
        return queue.get(run.id)

    return go


def test_interrupted_run_says_what_it_waits_for_and_is_resumed_by_another(go: Go, fx: Effects) -> None:
    graph = chain(("plan", node(fx, "plan")), ("ask", asks(fx, "ask", "Go on?")), ("act", node(fx, "act"))).compile()
    first = go(graph, {"topic": "x"})
    assert first.status == "done"
    [asked] = interrupts(first)
    assert asked["value"] == "Go on?"
    assert first.result == {"$langgraph": {"thread_id": str(first.id), "interrupts": [asked]}}
    second = go(graph, resume(first, "yes"))
    assert second.result == {"topic": "x", "done": ["plan", "ask", "act"], "said": ["yes"]}
    assert interrupts(second) == []
    assert fx.attempts(first.id, "plan") == [1]
    assert fx.attempts(second.id, "plan") == []


def test_an_answer_is_not_given_to_the_next_question_when_the_node_fails_after_it(go: Go, fx: Effects) -> None:
    graph = chain(("ask", asks(fx, "ask", "Look?", "Delete it all?", fail_after=1))).compile()
    first = go(graph, {})
    second = go(graph, resume(first, "yes"))
    assert (second.status, second.attempts) == ("done", 2)
    assert [x["value"] for x in interrupts(second)] == ["Delete it all?"]
    third = go(graph, resume(second, "no"))
    assert third.result == {"done": ["ask"], "said": ["yes", "no"]}


def test_an_answer_is_given_again_when_the_node_fails_before_it_took_it(go: Go, fx: Effects) -> None:
    def act(state: State) -> dict[str, Any]:
        if fx.is_open("answered") and not fx.is_open("failed"):
            fx.open("failed")
            raise RuntimeError("the tool broke")
        return {"said": [interrupt("q")]}

    graph = chain(("act", act)).compile()
    first = go(graph, {})
    fx.open("answered")
    second = go(graph, resume(first, "yes"))
    assert (second.attempts, second.result) == (2, {"done": [], "said": ["yes"]})


def test_each_of_parallel_questions_gets_its_own_answer(go: Go, fx: Effects) -> None:
    builder = StateGraph(State)
    for name in ("left", "right"):
        builder.add_node(name, asks(fx, name, f"{name}?"))
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    graph = builder.compile()
    first = go(graph, {})
    ids = {x["value"]: x["id"] for x in interrupts(first)}
    with pytest.raises(InvalidRun, match="answers to some of"):
        resume(first, "yes")
    second = go(graph, resume(first, {ids["right?"]: "R"}))
    assert [x["id"] for x in interrupts(second)] == [ids["left?"]]
    third = go(graph, resume(second, "L"))
    assert third.result == {"done": ["left", "right"], "said": ["L", "R"]}


def test_a_question_in_a_subgraph_is_answered(go: Go, fx: Effects) -> None:
    inner = chain(("ask", asks(fx, "ask", "one?", "two?", fail_after=1))).compile()
    graph = chain(("plan", node(fx, "plan")), ("inner", inner)).compile()
    first = go(graph, {"topic": "x"})
    second = go(graph, resume(first, 1))
    assert second.attempts == 2
    assert [x["value"] for x in interrupts(second)] == ["two?"]
    third = go(graph, resume(second, 2))
    assert third.status == "done"
    assert third.result["said"] == [1, 2]


def test_a_late_answer_is_refused_and_nothing_runs(go: Go, fx: Effects) -> None:
    graph = chain(("ask", asks(fx, "ask", "Go on?")), ("act", node(fx, "act"))).compile()
    first = go(graph, {})
    go(graph, resume(first, "yes"))
    late = go(graph, resume(first, "no"))
    assert (late.status, late.error_code, late.attempts) == ("dead", "Discard", 1)
    assert "not waiting" in (late.error_message or "")
    assert fx.attempts(late.id, "act") == []


def test_no_tenant_answers_for_another(go: Go, fx: Effects) -> None:
    graph = chain(("ask", asks(fx, "ask", "Go on?"))).compile()
    first = go(graph, {})
    assert go(graph, resume(first, "yes"), tenant_id="other").status == "dead"
    assert go(graph, resume(first, "yes")).status == "done"


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({"thread_id": 5, "input": {}}, "thread_id"),
        ({"thread_id": "a"}, "either input or resume"),
        ({"thread_id": "a", "input": {}, "resume": {"i": 1}}, "either input or resume"),
        ({"thread_id": "a", "resume": "yes"}, "resume"),
        ({"thread_id": "a", "input": {}, "threat": 1}, "threat"),
    ],
)
def test_a_malformed_order_is_named(told: Any, field: str) -> None:
    with pytest.raises(InvalidRun, match=field):
        order("id", {"$langgraph": told})


def test_a_run_that_was_not_interrupted_cannot_be_resumed(go: Go, fx: Effects) -> None:
    done = go(chain(("plan", node(fx, "plan"))).compile(), {})
    with pytest.raises(InvalidRun, match="was not interrupted"):
        resume(done, "yes")


def test_static_breakpoints_and_other_checkpointers_are_refused(fx: Effects) -> None:
    builder = chain(("plan", node(fx, "plan")))
    with pytest.raises(InvalidRun, match="interrupt_before"):
        graph_handler(builder.compile(interrupt_before=["plan"]))
    outer = chain(("inner", builder.compile(interrupt_after=["plan"]))).compile()
    with pytest.raises(InvalidRun, match="inner has interrupt_before or interrupt_after"):
        graph_handler(outer)
    with pytest.raises(InvalidRun, match="InMemorySaver"):
        graph_handler(builder.compile(checkpointer=InMemorySaver()))
