"""What every retry delay must keep."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest

from runqueue.decisions import Failure, RetryDelay
from runqueue.hooks import hookimpl
from runqueue.queue import RunQueue
from runqueue.testing.rig import Rig
from runqueue.testing.suite import PluginSuite


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("an error that cannot say what it is")


ERRORS: list[BaseException | None] = [
    None, ValueError("x"), OSError(28, "no space"), _Unspeakable(), asyncio.CancelledError(), KeyboardInterrupt(),
    ExceptionGroup("several", [ValueError("x"), KeyError("y")]),
]  # fmt: skip


class _ThenRaises:
    """Named last, and so asked first: it lets the others decide, and raises."""

    def __init__(self, decided: RunQueue) -> None:
        self.name = "then_raises"
        self._decided = decided

    @hookimpl
    def runqueue_retry_delay(self, failure: Failure) -> RetryDelay:
        """Raise."""
        self._decided.core.ctx.hooks.retry_delay(failure, self._decided.settings)
        raise ArithmeticError("after all")


class RetryDelaySuite(PluginSuite):
    """A retry delay answers for every failure, with seconds that a run can wait, or `math.inf` for no more attempts."""

    def failure(self, attempts: int, error: BaseException | None, **changes: Any) -> Failure:
        """A failure to be asked about; override it where only some kinds or tenants are the plugin's."""
        told = {"kind": "alpha", "tenant_id": "t", "max_attempts": 20_000, "age": 1.0, "error_message": "x", **changes}
        code = type(error).__name__ if error else "Error"
        return Failure(attempts=attempts, error=error, error_code=code, **told)

    def answers(self, queue: RunQueue, *failures: Failure) -> Iterator[tuple[Failure, float]]:
        """What the queue's plugins say to each."""
        for one in failures:
            yield one, queue.core.ctx.hooks.retry_delay(one, queue.settings).seconds

    def test_every_attempt_is_answered(self, offline: RunQueue) -> None:
        """The first to the ten thousandth, each with 0 or more seconds, ten years at most, or with `math.inf`."""
        failures = [self.failure(n, ValueError("x")) for n in range(1, 10_001)]
        for failure, seconds in self.answers(offline, *failures):
            assert seconds == math.inf or 0 <= seconds <= 315_360_000, f"attempt {failure.attempts}: {seconds}"

    def test_every_error_is_answered(self, offline: RunQueue) -> None:
        """Exceptions of all sorts, and none: then only a text is known."""
        for failure, seconds in self.answers(offline, *(self.failure(2, x) for x in ERRORS)):
            assert seconds >= 0, f"{failure.error!r}: {seconds}"

    def test_every_setting_is_answered(self, offline: RunQueue) -> None:
        """No base, no cap, a cap below the base; and runs of any age."""
        for base, cap in ((0, 0), (0, 300), (5, 0), (300, 5), (1e-9, 3e8)):
            queue = self.make_queue(offline.engine, retry_base=base, retry_cap=cap)
            failures = [self.failure(n, None, age=age) for n in (1, 70, 2000) for age in (0.0, 1e-9, 1e9)]
            for failure, seconds in self.answers(queue, *failures):
                assert seconds >= 0, f"base {base}, cap {cap}: {failure}: {seconds}"

    def test_a_failed_run_waits_as_long_as_was_said(self, rig: Rig) -> None:
        """It is due after the delay that its event tells of; or it has ended."""
        rig.fill(8, max_attempts=100)
        for n, claimed in enumerate(rig.queue.claim("w", limit=8)):
            rig.queue.fail(claimed.lease, ERRORS[1 + n % 2] or "x")
            run, event = rig.queue.get(claimed.run.id), rig.queue.events(claimed.run.id)[-1]
            if run.status != "dead":
                waits = (run.available_at - run.updated_at).total_seconds()
                assert waits == pytest.approx(event.data["delay"], abs=0.1)

    def test_deciding_changes_nothing(self, rig: Rig) -> None:
        """An exception after the decision fails the operation: the run is leased as before, nothing was written."""
        rig.fill(2, max_attempts=100)
        claimed, _ = rig.queue.claim("w", limit=2)
        broken = rig.another(plugins=[*self.plugins, _ThenRaises(rig.queue)])
        before = rig.everything()
        with pytest.raises(ArithmeticError):
            broken.fail(claimed.lease, ValueError("x"))
        assert rig.everything() == before
        rig.queue.complete(claimed.lease, "still mine")
