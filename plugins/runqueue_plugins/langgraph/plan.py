"""What both handlers of graphs decide, without any I/O: what to feed a graph with, and what its output means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.pregel import Pregel
from langgraph.types import Command
from pydantic_core import from_json, to_json

from runqueue import Discard, InvalidRun
from runqueue_plugins.langgraph.asaver import AsyncGraphSaver
from runqueue_plugins.langgraph.saver import GraphSaver
from runqueue_plugins.langgraph.threads import Order, paused

ASKED = "__interrupt__"

Graph = Pregel[Any, Any, Any, Any]


def check(graph: Graph) -> None:
    """Refuse what could not be resumed rightly. Raises InvalidRun."""
    own = graph.checkpointer
    if isinstance(own, BaseCheckpointSaver) and not isinstance(own, GraphSaver | AsyncGraphSaver):
        raise InvalidRun("graph", f"must be compiled without a checkpointer of its own, not with {type(own).__name__}")
    for name, part in (("the graph", graph), *graph.get_subgraphs(recurse=True)):
        if part.interrupt_before_nodes or part.interrupt_after_nodes:  # type: ignore[attr-defined]  # they are Pregel
            raise InvalidRun(
                "graph",
                f"{name} has interrupt_before or interrupt_after, which a resume after a crash would walk past: "
                "call interrupt() in the node",
            )


def config(run: Any, order: Order, given: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a run's graph: `config["configurable"]["run"]` is the run, for nodes that need it."""
    return {
        **given,
        "configurable": {**given.get("configurable", {}), "thread_id": order.thread_id, "run": run},
        "metadata": {**given.get("metadata", {}), "run_id": str(run.id)},
    }


def feed(run: Any, order: Order, newest: CheckpointTuple | None) -> Any:
    """What to start the graph with, where it takes an input: None where this run has put it in already."""
    started = newest is not None and newest.metadata.get("run_id") == str(run.id)
    return None if started else order.input


def first_answers(order: Order, pending: set[str], taken: Mapping[str, int]) -> dict[str, int]:
    """What to remember before the answers are given for the first time. Raises Discard where nobody waits for one."""
    if late := sorted(order.answers.keys() - pending if order.answers else ()):
        raise Discard(f"thread {order.thread_id!r} is not waiting for an answer to {', '.join(late)}")
    return {id_: taken.get(id_, 0) for id_ in order.answers or {}}


def answer(run: Any, order: Order, newest: CheckpointTuple | None, taken: Mapping[str, int]) -> Any:
    """What to start the graph with, where it takes answers: those that no task has taken yet, else None.

    An answer that is given once more, after a crash, would answer the same task's next question.
    """
    before = (run.checkpoint or {}).get(ASKED, {})
    left = {
        id_: value
        for id_, value in (order.answers or {}).items()
        if feed(run, order, newest) is None and id_ in taken and taken[id_] <= before.get(id_, 0)
    }
    return Command(resume=left) if left else None


class Output:
    """The newest output of a graph, and what it waits for."""

    def __init__(self) -> None:
        self.value: Any = None
        self.asked: dict[str, Any] = {}

    def hear(self, mode: str, payload: Any) -> None:
        """Take note of what the graph streams."""
        if mode == "values":
            self.value = payload
        elif isinstance(payload, dict) and ASKED in payload:
            self.asked |= {x.id: x.value for x in payload[ASKED]}

    def result(self, order: Order, convert: Callable[[Any], Any]) -> Any:
        """The run's result, as JSON has it."""
        if self.asked:
            return paused(order.thread_id, [{"id": id_, "value": jsonable(x)} for id_, x in self.asked.items()])
        return convert(self.value)


def jsonable(value: Any) -> Any:
    """A graph's output as JSON: messages, pydantic models and dataclasses as dicts, texts for what has no such form."""
    return from_json(to_json(value, fallback=str, bytes_mode="base64", inf_nan_mode="strings"))
