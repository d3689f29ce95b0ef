"""What a handler's end means for its run."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass

from runqueue import values
from runqueue.core import Core
from runqueue.errors import Discard, InvalidRun, LeaseLost, Retry, RunCancelled, Snooze
from runqueue.failures import Described
from runqueue.operations.redacting import describe_error
from runqueue.types import Lease


class Stop(enum.Enum):
    """Why a handler was told to stop."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    DRAIN = "drain"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; `result` is JSON text."""

    result: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised."""

    error: Described
    retry: bool = True
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The run is given back."""

    delay: float
    reason: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler stopped because somebody asked for it."""


Outcome = Completed | Failed | Released | Cancelled


def word_for(outcome: Outcome | None) -> str:
    """How observers are told of an outcome."""
    match outcome:
        case Completed():
            return "done"
        case Failed():
            return "failed"
        case Released():
            return "released"
        case Cancelled():
            return "cancelled"
    return "lost"


def of_return(core: Core, result: object) -> Outcome:
    """The outcome of a handler that returned, whatever it was told before: its work is done."""
    try:
        return Completed(None if result is None else core.encode(result, "result"))
    except Exception as error:
        return Failed(describe_error(core.ctx, error))


def of_error(core: Core, lease: Lease, error: BaseException, stop: Stop | None) -> Outcome | None:
    """The outcome of a handler that raised; None where the lease is lost, and nothing may be written."""
    if stop is Stop.LOST or (isinstance(error, LeaseLost) and lease in error.leases):
        return None
    if stop is not None:
        return of_stop(stop)
    match error:
        case Snooze() | Retry():
            return _of_instruction(core, error)
        case Discard():
            return Failed(describe_error(core.ctx, error), retry=False)
        case RunCancelled() | asyncio.CancelledError():
            text = "the handler was cancelled, but nobody had asked for that"
            return Failed(Described(type(error).__name__, text, error))
    return Failed(describe_error(core.ctx, error))


def _of_instruction(core: Core, error: Snooze | Retry) -> Outcome:
    try:
        delay = None if error.delay is None else values.seconds(error.delay, field="delay")
    except InvalidRun as wrong:  # a delay that nobody can wait for is a mistake of the handler's, like any other
        return Failed(describe_error(core.ctx, wrong))
    if isinstance(error, Snooze):
        return Released(delay or 0.0, "snoozed")
    return Failed(describe_error(core.ctx, error), delay=delay)


def of_stop(stop: Stop) -> Outcome | None:
    """The outcome of a handler that ended by being stopped, or did not end and is given up."""
    match stop:
        case Stop.CANCEL:
            return Cancelled()
        case Stop.DRAIN:
            return Released(0.0, "the worker shut down")
        case Stop.TIMEOUT:
            return Failed(Described("timeout", "the handler ran into its timeout"))
    return None
