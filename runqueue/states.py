"""The states of a run and the moves between them: the one table that statements, tests and docs follow."""

from __future__ import annotations

from dataclasses import dataclass

from runqueue.types import TERMINAL, RunStatus

P, L = RunStatus.PENDING, RunStatus.LEASED
DONE, DEAD, CANCELLED = RunStatus.DONE, RunStatus.DEAD, RunStatus.CANCELLED


@dataclass(frozen=True, slots=True)
class Transition:
    """A move that the verb may make. `source` None is a run that does not exist yet."""

    source: RunStatus | None
    target: RunStatus
    verb: str


TRANSITIONS = (
    Transition(None, P, "enqueue"),
    Transition(P, L, "claim"),
    Transition(L, L, "heartbeat"),
    Transition(L, DONE, "complete"),
    Transition(L, P, "fail"),
    Transition(L, DEAD, "fail"),
    Transition(L, CANCELLED, "fail"),
    Transition(L, P, "release"),
    Transition(L, CANCELLED, "release"),
    Transition(L, CANCELLED, "settle_cancelled"),
    Transition(L, P, "reap"),
    Transition(L, DEAD, "reap"),
    Transition(L, CANCELLED, "reap"),
    Transition(L, L, "claim"),
    Transition(L, DEAD, "claim"),
    Transition(L, CANCELLED, "claim"),
    Transition(P, CANCELLED, "cancel"),
    Transition(DEAD, P, "retry"),
    Transition(CANCELLED, P, "retry"),
)

__all__ = ["TERMINAL", "TRANSITIONS", "RunStatus", "Transition"]
