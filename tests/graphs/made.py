"""Graphs for tests. Each node notes what it did on a connection of its own, outside of any lease."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from support.effects import Effects


class State(TypedDict, total=False):
    """`done` names the nodes that have finished, `said` what people answered."""

    topic: str
    done: Annotated[list[str], operator.add]
    said: Annotated[list[Any], operator.add]


Node = Callable[[Any, Any], dict[str, Any]]


def node(fx: Effects, name: str, gate: str | None = None) -> Node:
    """A node that waits at a gate, where one is named."""

    def act(state: State, config: RunnableConfig) -> dict[str, Any]:
        run = config["configurable"]["run"]
        fx.note(run, name)
        while gate and not fx.is_open(gate) and not run.cancel_requested:
            time.sleep(0.02)
        if gate and not fx.is_open(gate):
            run.raise_if_cancelled()
        fx.note(run, f"{name} done")
        return {"done": [name]}

    return act


def chain(*nodes: tuple[str, Node]) -> Any:
    """A graph of nodes, one after the other, not compiled yet."""
    builder = StateGraph(State)
    before = START
    for name, act in nodes:
        builder.add_node(name, act)
        builder.add_edge(before, name)
        before = name
    builder.add_edge(before, END)
    return builder


def split(fx: Effects) -> Any:
    """One step of two parallel nodes in the middle, one of which waits."""
    builder = StateGraph(State)
    for name, gate in (("plan", None), ("left", None), ("right", "right"), ("report", None)):
        builder.add_node(name, node(fx, name, gate))
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "left")
    builder.add_edge("plan", "right")
    builder.add_edge(["left", "right"], "report")
    builder.add_edge("report", END)
    return builder.compile()


def asks(fx: Effects, name: str, *questions: str, fail_after: int | None = None) -> Node:
    """A node that asks people; it fails once, when so many of its questions are answered."""

    def act(state: State, config: RunnableConfig) -> dict[str, Any]:
        said = []
        for number, question in enumerate(questions):
            said.append(interrupt(question))
            if number + 1 == fail_after and not fx.is_open(f"{name} failed"):
                fx.open(f"{name} failed")
                raise RuntimeError("the tool broke")
        fx.note(config["configurable"]["run"], f"{name} done")
        return {"done": [name], "said": said}

    return act
