"""A retry policy out of tenacity's objects, asked about one failure at a time."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenacity import Future, RetryCallState, Retrying

from runqueue import Failure, InvalidRun, RetryDelay

LONGEST = timedelta(days=3650).total_seconds()
"""What a growing wait, such as `wait_exponential()` without a `max`, may come to; above, the cap counts."""


class RecordedFailure(Exception):
    """Stands for a failure of which only the text is known, such as `fail(lease, "no luck")`. `code` is its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Any of tenacity's `wait_…`, `stop_…` and `retry_if_…` objects, their combinations, or functions of a call state.

    `wait`: the seconds until the next attempt, `math.inf` for none; exponential backoff where it is, or answers, None.
    `stop`: whether the run gets no further attempt. `retry`: whether the failure is one that another attempt may mend.
    The run's `max_attempts` holds besides. The objects are shared by all runs and threads.

    They are given a `RetryCallState`: `attempt_number` is the attempts charged so far, `outcome` the failed future with
    the exception (a `RecordedFailure` where only the text is known), `seconds_since_start` the seconds since the run
    was enqueued, and `idle_for` the same, as the most that the run can have waited. Raises InvalidRun.
    """

    wait: Callable[[RetryCallState], float | None] | None = None
    stop: Callable[[RetryCallState], bool] | None = None
    retry: Callable[[RetryCallState], bool] | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            if not callable(value) or inspect.isclass(value):
                raise InvalidRun(name, f"must be an object of tenacity such as {_EXAMPLES[name]}, not {value!r:.80}")
            if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
                raise InvalidRun(name, "must not be async: it is asked while the failure is written")

    def ask(self, failure: Failure, cap: float) -> RetryDelay | None:
        """What the policy says of a failure; None where it leaves the delay to exponential backoff.

        `cap` counts where a wait grows beyond what a float or a queue can hold.
        """
        state = self._state(failure)
        if self.retry is not None and not self.retry(state):
            return RetryDelay(math.inf, f"not retried: {told(self.retry)}")
        seconds = None if self.wait is None else _waited(self.wait, state, cap)
        state.upcoming_sleep = 0.0 if seconds is None else seconds
        if self.stop is not None and self.stop(state):
            return RetryDelay(math.inf, f"stopped: {told(self.stop)}")
        return None if seconds is None else RetryDelay(seconds, told(self.wait))

    def _state(self, failure: Failure) -> RetryCallState:
        state = RetryCallState(Retrying(), None, (), {})
        outcome = Future(failure.attempts)
        error = failure.error
        if error is None:
            error = RecordedFailure(failure.error_code, failure.error_message)
        outcome.set_exception(error)
        state.attempt_number = failure.attempts
        state.outcome = outcome
        state.outcome_timestamp = time.monotonic()
        state.start_time = state.outcome_timestamp - failure.age
        state.idle_for = failure.age
        return state


_EXAMPLES = {
    "wait": "wait_fixed(5)",
    "stop": "stop_after_attempt(3)",
    "retry": "retry_if_exception_type(OSError)",
}


def told(rule: Any) -> str:
    """The name of a tenacity object or a function, with the names of what it combines."""
    name = getattr(rule, "__name__", type(rule).__name__)
    for attribute in ("stops", "retries", "wait_funcs", "strategies"):
        parts = getattr(rule, attribute, None)
        if isinstance(parts, tuple):
            return f"{name}({', '.join(map(told, parts))})"
    return str(name)


def _waited(wait: Callable[[RetryCallState], float | None], state: RetryCallState, cap: float) -> float | None:
    """What a wait answers. Growth without end is cut to the cap; all that is no duration is the manager's to refuse."""
    try:
        seconds = wait(state)
        beyond = isinstance(seconds, (int, float)) and seconds > LONGEST and seconds != math.inf
    except OverflowError:
        beyond = True
    return cap if beyond else seconds
