"""Watching runs: all waiters and event readers of a process share one statement an interval, and hold no connection.

Polling, on purpose: it needs no session of its own, works behind a transaction pooler, and cannot miss anything.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from runqueue.types import RunStatus

State = tuple[RunStatus, int]
"""Status and number of the last event."""

log = logging.getLogger("runqueue.watch")


def ended(state: State) -> bool:
    """The run will not move any more by itself."""
    return state[0].terminal


def news_after(seq: int) -> Callable[[State], bool]:
    """There are events after `seq`, or there will be none."""
    return lambda state: state[0].terminal or state[1] > seq


class Watcher:
    """For threads: one of them polls while anybody waits."""

    def __init__(self, poll: Callable[[Sequence[UUID]], dict[UUID, State]], interval: float) -> None:
        self._poll = poll
        self._interval = interval
        self._changed = threading.Condition()
        self._wanted = Counter[UUID]()
        self._seen: dict[UUID, State | None] = {}
        self._thread: threading.Thread | None = None

    def wait(self, run_id: UUID, done: Callable[[State | None], bool], timeout: float | None) -> bool:
        """Block until `done` is true of the run's state (None: no such run); False once `timeout` seconds passed."""
        with self._changed:
            self._wanted[run_id] += 1
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="runqueue-watch", daemon=True)
                self._thread.start()
            try:
                return self._changed.wait_for(lambda: run_id in self._seen and done(self._seen[run_id]), timeout)
            finally:
                self._leave(run_id)

    def join(self, timeout: float) -> None:
        """See the polling thread off, once nobody waits; it may have a connection for a moment longer."""
        thread = self._thread
        if thread is not None and not self._wanted:
            thread.join(timeout)

    def _leave(self, run_id: UUID) -> None:
        self._wanted[run_id] -= 1
        if not self._wanted[run_id]:
            del self._wanted[run_id]
            self._seen.pop(run_id, None)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            with self._changed:
                wanted = list(self._wanted)
                if not wanted:
                    self._thread = None
                    return
            found = self._look(wanted)
            with self._changed:
                if found is not None:
                    self._seen = {run_id: found.get(run_id) for run_id in wanted if run_id in self._wanted}
                    self._changed.notify_all()
            pause.wait(self._interval)

    def _look(self, wanted: Sequence[UUID]) -> dict[UUID, State] | None:
        try:
            return self._poll(wanted)
        except Exception as error:
            log.warning("cannot look at watched runs, trying again: %s", type(error).__name__)
            return None


class AsyncWatcher:
    """For tasks of one event loop: one of them polls while anybody waits."""

    def __init__(self, poll: Callable[[Sequence[UUID]], Awaitable[dict[UUID, State]]], interval: float) -> None:
        self._poll = poll
        self._interval = interval
        self._changed = asyncio.Condition()
        self._wanted = Counter[UUID]()
        self._seen: dict[UUID, State | None] = {}
        self._task: asyncio.Task[None] | None = None

    async def wait(self, run_id: UUID, done: Callable[[State | None], bool], timeout: float | None) -> bool:
        """Wait until `done` is true of the run's state (None: no such run); False once `timeout` seconds passed."""
        self._wanted[run_id] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="runqueue-watch")
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: run_id in self._seen and done(self._seen[run_id]))
            return True
        except TimeoutError:
            return False
        finally:
            self._wanted[run_id] -= 1
            if not self._wanted[run_id]:
                del self._wanted[run_id]
                self._seen.pop(run_id, None)

    async def join(self, timeout: float) -> None:
        """See the polling task off, once nobody waits; it may have a connection for a moment longer."""
        if self._task is not None and not self._wanted:
            await asyncio.wait([self._task], timeout=timeout)

    async def _run(self) -> None:
        while wanted := list(self._wanted):
            found = await self._look(wanted)
            if found is not None:
                async with self._changed:
                    self._seen = {run_id: found.get(run_id) for run_id in wanted if run_id in self._wanted}
                    self._changed.notify_all()
            await asyncio.sleep(self._interval)

    async def _look(self, wanted: Sequence[UUID]) -> dict[UUID, State] | None:
        try:
            return await self._poll(wanted)
        except Exception as error:
            log.warning("cannot look at watched runs, trying again: %s", type(error).__name__)
            return None
