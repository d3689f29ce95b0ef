"""What a run of a graph is told in its input, and what it says in its result, where a thread is paused or named.

Both are plain JSON with one reserved key, so that producers need neither this module nor LangGraph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runqueue import InvalidRun, Run

RESERVED = "$langgraph"


@dataclass(frozen=True, slots=True)
class Order:
    """What a run is to do: give `input` to a thread, or the `answers` by the id of their interrupt."""

    thread_id: str
    input: Any = None
    answers: Mapping[str, Any] | None = None


def on_thread(thread_id: str, input: Any) -> dict[str, Any]:
    """The input of a run that goes on with a thread of its tenant, as the next turn of a conversation does."""
    return {RESERVED: {"thread_id": thread_id, "input": input}}


def interrupts(run: Run) -> list[dict[str, Any]]:
    """What a finished run's graph waits for: `{"id": …, "value": …}` of each interrupt, none where the graph ended."""
    told = _reserved(run.result)
    return [] if told is None else list(told["interrupts"])


def resume(run: Run, answer: Any) -> dict[str, Any]:
    """The input of a run that answers what `run` was interrupted by. Several interrupts take a dict of answers by id.

    Raises InvalidRun where `run` was not interrupted, or an id is not one of its own.
    """
    asked = [x["id"] for x in interrupts(run)]
    if not asked:
        raise InvalidRun("run", f"run {run.id} was not interrupted")
    if len(asked) == 1 and not (isinstance(answer, dict) and answer.keys() == set(asked)):
        answer = {asked[0]: answer}
    if not isinstance(answer, dict) or not answer.keys() <= set(asked):
        raise InvalidRun("answer", f"must be a dict with answers to some of the interrupts {', '.join(asked)}")
    return {RESERVED: {"thread_id": run.result[RESERVED]["thread_id"], "resume": answer}}


def paused(thread_id: str, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a run whose graph was interrupted."""
    return {RESERVED: {"thread_id": thread_id, "interrupts": asked}}


def order(run_id: Any, input: Any) -> Order:
    """Read a run's input: a graph's input as it is, on a thread named as the run, unless it has the reserved key.

    Raises InvalidRun.
    """
    told = _reserved(input)
    if told is None:
        return Order(str(run_id), input)
    field = f"input.{RESERVED}"
    thread_id = told.get("thread_id", str(run_id))
    if not isinstance(thread_id, str) or not thread_id:
        raise InvalidRun(f"{field}.thread_id", "must be a text")
    if unknown := told.keys() - {"thread_id", "input", "resume"}:
        raise InvalidRun(field, f"must have thread_id and input or resume, not {', '.join(sorted(unknown))}")
    if ("input" in told) == ("resume" in told):
        raise InvalidRun(field, "must have either input or resume")
    if "input" in told:
        return Order(thread_id, told["input"])
    answers = told["resume"]
    if not isinstance(answers, dict) or not answers:
        raise InvalidRun(f"{field}.resume", "must be a dict with an answer by the id of its interrupt")
    return Order(thread_id, answers=answers)


def _reserved(value: Any) -> Any:
    told = value.get(RESERVED) if isinstance(value, dict) and len(value) == 1 else None
    return told if isinstance(told, dict) else None
