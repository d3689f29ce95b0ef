"""One run in the hands of this process: its lease, its handler, and what it was told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from runqueue.core import Core, HandlerSpec
from runqueue.types import ClaimedRun, Lease
from runqueue.worker import report
from runqueue.worker.decide import stop_by
from runqueue.worker.outcome import Outcome, Stop, of_error, of_return, of_stop, word_for


class Execution:
    """State shared by the control, heartbeat and watchdog threads and the handler; each field has one writer or a lock.

    A handler that is told to stop gets a flag, then, if it is a coroutine, a cancellation, and in the end is given up:
    its run is settled without it, and all that it still tries to write is refused.
    """

    def __init__(self, core: Core, claimed: ClaimedRun, spec: HandlerSpec, sent: float) -> None:
        self.core = core
        self.claimed = claimed
        self.spec = spec
        self.lease: Lease = claimed.lease
        self.stop_by = stop_by(sent, claimed.time_left)
        self.started = time.monotonic()
        self.stop: Stop | None = None
        self.cancel_requested = threading.Event()
        self.on_cancel: Callable[[], None] = lambda: None
        self.ended = threading.Event()
        self.force_at: float | None = None
        self.abandon_at: float | None = None
        self.forced = False
        self._settled = False
        self._lock = threading.Lock()
        self._task: asyncio.Task[object] | None = None
        self._future: Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function."""
        return self.spec.is_async

    @property
    def lost(self) -> bool:
        """Whether the right to write is gone."""
        return self.stop is Stop.LOST

    @property
    def writable(self) -> bool:
        """Whether the handler may still write: not lost, not settled without it."""
        return not self.lost and not self._settled

    def renewed(self, lease: Lease, sent: float, time_left: float) -> None:
        """A heartbeat was accepted."""
        self.lease = lease
        self.stop_by = stop_by(sent, time_left)

    # ------------------------------------------------------------------------------------------------- being told

    def tell(self, stop: Stop, *, force_in: float, abandon_in: float) -> bool:
        """Tell the handler to stop: a flag now, a cancellation in `force_in` seconds, given up `abandon_in` after that.

        The first reason counts, but a lost lease overrules any; a later one can only bring the times forward. Returns
        whether this call was the one that counted.
        """
        with self._lock:
            now = time.monotonic()
            force_at, abandon_at = now + force_in, now + force_in + abandon_in
            if self.force_at is not None and self.abandon_at is not None:
                force_at, abandon_at = min(force_at, self.force_at), min(abandon_at, self.abandon_at)
            self.force_at, self.abandon_at = force_at, abandon_at
            if self.stop is stop or self.lost or (self.stop is not None and stop is not Stop.LOST):
                return False
            self.stop = stop
        self.cancel_requested.set()
        self.on_cancel()
        return True

    def next_step(self) -> float | None:
        """When the watchdog has to do something next."""
        if self._settled:
            return None
        steps = [] if self.lost else [self.stop_by]
        if self.stop is None and self.spec.timeout is not None:
            steps.append(self.started + self.spec.timeout)
        told = self.abandon_at if self.forced else self.force_at
        if told is not None:
            steps.append(told)
        return min(steps, default=None)

    def force(self) -> None:
        """Cancel the coroutine; a thread cannot be stopped, only asked."""
        with self._lock:
            self.forced = True
            if self._task is not None and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._task.cancel)

    def claim_settlement(self) -> bool:
        """Take the right to settle the run; exactly one caller gets it: the handler's end, or who gives it up."""
        with self._lock:
            if self._settled:
                return False
            self._settled = True
            return True

    def give_up(self) -> Outcome | None:
        """What to write for a handler that did not stop."""
        assert self.stop is not None
        report.given_up(self.claimed, self.stop, in_thread=not self.is_async)
        return of_stop(self.stop)

    # --------------------------------------------------------------------------------------------------- running

    def start_task(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[], object], done: Callable[[Outcome | None], None]
    ) -> None:
        """Run a coroutine handler on a loop; `done` hears its outcome, on that loop's thread."""
        self._loop = loop
        self._future = asyncio.run_coroutine_threadsafe(self._run_task(call, done), loop)

    async def _run_task(self, call: Callable[[], object], done: Callable[[Outcome | None], None]) -> None:
        task = asyncio.current_task()
        with self._lock:
            self._task, forced = task, self.forced
        outcome: Outcome | None
        raised: BaseException | None = None
        try:
            if forced:
                raise asyncio.CancelledError
            self.core.ctx.hooks.run_started(self.claimed)
            result = await call()  # type: ignore[misc]  # the handler is a coroutine function
            outcome = of_return(self.core, result)
        except BaseException as error:
            outcome, raised = self._of_error(error), error
        with self._lock:
            self._task = None
        self._end(outcome, raised, done)

    def start_thread(self, call: Callable[[], object], done: Callable[[Outcome | None], None]) -> None:
        """Run a plain handler in a thread of its own; `done` hears its outcome, on that thread."""
        name = f"runqueue-run-{self.claimed.run.id}"
        threading.Thread(target=self._run_thread, args=(call, done), name=name, daemon=True).start()

    def _run_thread(self, call: Callable[[], object], done: Callable[[Outcome | None], None]) -> None:
        outcome: Outcome | None
        raised: BaseException | None = None
        try:
            self.core.ctx.hooks.run_started(self.claimed)
            outcome = of_return(self.core, call())
        except BaseException as error:
            outcome, raised = self._of_error(error), error
        self._end(outcome, raised, done)

    def _of_error(self, error: BaseException) -> Outcome | None:
        outcome = of_error(self.core, self.claimed.lease, error, self.stop)
        report.failed(self.core.ctx, self.claimed, outcome, error)
        return outcome

    def _end(
        self, outcome: Outcome | None, raised: BaseException | None, done: Callable[[Outcome | None], None]
    ) -> None:
        self.core.ctx.hooks.run_ended(self.claimed, word_for(None if self.lost else outcome), raised)
        self.ended.set()
        done(None if self.lost else outcome)
