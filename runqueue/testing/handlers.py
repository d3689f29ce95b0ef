"""Fake handlers: one that notes its calls, one that fails, one that waits until it is told.

Register them as any handler: `queue.handler("k")(done := Records())`. They run in threads, and may be asked from any.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from runqueue.testing.databases import eventually
from runqueue.worker import SyncRunContext


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a handler."""

    run_id: UUID
    tenant_id: str
    attempt: int
    input: Any
    checkpoint: Any


class Records:
    """Notes each call in `calls`, and returns `result`."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def __call__(self, run: SyncRunContext) -> Any:
        with self._lock:
            self.calls.append(Call(run.id, run.tenant_id, run.attempt, run.input, run.checkpoint))
        return self.act(run)

    def act(self, run: SyncRunContext) -> Any:
        """What it does besides."""
        del run
        return self.result

    def await_calls(self, count: int, timeout: float = 10) -> None:
        """Wait until it was called so often. AssertionError after `timeout` seconds."""
        eventually(lambda: len(self.calls) >= count, timeout, what=f"call {count}")


class Fails(Records):
    """Raises `error` in the first `times` attempts of each run, then returns `result`."""

    def __init__(self, times: int, error: BaseException | None = None, result: Any = None) -> None:
        super().__init__(result)
        self.times = times
        self.error = error or RuntimeError("failed as it was told to")

    def act(self, run: SyncRunContext) -> Any:
        """Fail, or go on."""
        if run.attempt <= self.times:
            raise self.error
        return self.result


class Blocks(Records):
    """Waits until `open()` is called; it stops when the run is asked to, unless `deaf`."""

    def __init__(self, result: Any = None, *, deaf: bool = False) -> None:
        super().__init__(result)
        self.deaf = deaf
        self._opened = threading.Event()

    def open(self) -> None:
        """Let those that wait go on, and those that come."""
        self._opened.set()

    def act(self, run: SyncRunContext) -> Any:
        """Wait."""
        while not self._opened.wait(0.02):
            if not self.deaf:
                run.raise_if_cancelled()
        return self.result
