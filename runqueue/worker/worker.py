"""The public worker: how it is started, embedded, drained and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from runqueue import values
from runqueue.aio import AsyncRunQueue
from runqueue.core import of_type
from runqueue.errors import InvalidRun, RunqueueError, Timeout
from runqueue.queue import RunQueue
from runqueue.types import Seconds
from runqueue.wakeup import Listener
from runqueue.worker.control import Control
from runqueue.worker.engines import Engines
from runqueue.worker.state import State, WorkerStats, worker_name

log = logging.getLogger("runqueue.worker")

LOOP_GRACE = 2.0
"""How long the end of a worker waits for its event loop, in seconds."""


class Worker:
    """Runs the handlers of a queue, `concurrency` at a time, of the kinds that are registered when it starts.

    `run()` is for a process of its own; `async with worker:` for an application that has an event loop; `drain()` for
    tests. Coroutine handlers run on one event loop, plain functions each in a thread. Claims, heartbeats and
    acknowledgements have threads and connections of their own: a handler that blocks its loop keeps its lease.

    `engine` and `async_engine` are for applications whose engines need more than their URL says: the one that the
    queue lacks is otherwise made from it.
    """

    def __init__(
        self,
        queue: RunQueue | AsyncRunQueue,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 10,
        engine: Engine | None = None,
        async_engine: AsyncEngine | None = None,
    ) -> None:
        if isinstance(queues, str):
            raise InvalidRun("queues", f"must be a list of names, not the string {queues!r}")
        if not queues:
            raise InvalidRun("queues", "must be a list of names, not empty")
        self.queue = of_type(queue, (RunQueue, AsyncRunQueue), "queue")
        self.queues = [values.name(x, field="queues") for x in queues]
        self.concurrency = values.integer(concurrency, field="concurrency", low=1, high=100_000)
        self._engine, self._async_engine = engine, async_engine
        self.name = ""
        self._state = State()
        self._control: Control | None = None
        self._engines: Engines | None = None
        self._listener: Listener | None = None
        self._stop_early: float | None = None

    @property
    def stats(self) -> WorkerStats:
        """Counters since the start."""
        self._state.busy()
        self._state.stats.listener_up = self._listener is not None and self._listener.up
        self._state.stats.plugin_errors = dict(self.queue.core.ctx.hooks.errors)
        return self._state.stats

    # ------------------------------------------------------------------------------------------ three ways to start

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain: a process of its own, called on its main thread.

        The first signal stops claiming, lets runs finish up to the drain deadline and releases the rest; the second
        ends the process at once, with 128 + the signal's number, and the leases expire.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RunqueueError("run() takes the signals of a process and belongs on its main thread: use `async with`")
        self._stop_early = None
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._work(until_idle=False)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def drain(self, timeout: Seconds = 60.0) -> int:
        """Run what is due now, and what that enqueues, then stop; return how many runs were settled. For tests.

        Raises Timeout when that takes longer than `timeout` seconds; the remaining runs are then released.
        """
        limit = values.seconds(timeout, field="timeout")
        self._stop_early = None
        late = threading.Timer(limit, self.stop, kwargs={"timeout": 0.0})
        late.daemon = True
        late.start()
        before = self._count()
        try:
            self._work(until_idle=True)
        finally:
            expired = late.finished.is_set()
            late.cancel()
        if expired:
            raise Timeout(f"not drained within {limit:g} s")
        return self._count() - before

    async def __aenter__(self) -> Worker:
        """Start in the background; coroutine handlers run on this event loop. Installs no signal handler."""
        self._stop_early = None
        await asyncio.to_thread(self._prepare)
        self._start(asyncio.get_running_loop(), until_idle=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain, up to the drain deadline, and release what is left."""
        self.stop()
        await self.serve()

    async def serve(self) -> None:
        """Wait until the worker, started by `async with`, has ended; raise what ended it if that was an error."""
        control = self._control
        assert control is not None
        while not await asyncio.to_thread(control.over, 1.0):
            pass
        engines = self._engines
        await asyncio.to_thread(self._close)
        if engines is not None:
            await engines.dispose_async()
        control.join()

    def stop(self, timeout: Seconds | None = None) -> None:
        """Begin to drain, from any thread; `timeout` replaces the drain deadline. Returns at once."""
        limit = self.queue.settings.drain_timeout
        if timeout is not None:
            limit = values.seconds(timeout, field="timeout")
        self._stop_early = limit
        if self._control is not None:
            self._control.drain(limit)

    # ------------------------------------------------------------------------------------------------------ inside

    def _work(self, *, until_idle: bool) -> None:
        self._prepare()
        loop = asyncio.new_event_loop() if self._has_coroutines() else None
        thread = threading.Thread(target=_run_loop, args=(loop,), name="runqueue-loop", daemon=True)
        if loop is not None:
            thread.start()
        engines = self._engines
        try:
            self._start(loop, until_idle=until_idle)
            assert self._control is not None
            control = self._control
            while not control.over(1.0):  # in steps, so that a signal is seen on every platform
                pass
            control.join()
        finally:
            self._close()
            if loop is not None:
                if engines is not None:
                    disposed = asyncio.run_coroutine_threadsafe(engines.dispose_async(), loop)
                    with contextlib.suppress(TimeoutError):  # a handler that was given up may block the loop
                        disposed.result(LOOP_GRACE)
                loop.call_soon_threadsafe(loop.stop)
                thread.join(LOOP_GRACE)

    def _prepare(self) -> None:
        """Check everything that can be wrong before any thread is started."""
        if self._control is not None and not self._control.ended.is_set():
            raise RunqueueError("this worker is running already")
        if not self.queue.core.handlers:
            raise InvalidRun("queue", "has no handler: register one with @queue.handler(kind)")
        self.name = worker_name()
        self._engines = Engines(self.queue, self._engine, self._async_engine)
        try:
            self._engines.control.check()
        except BaseException:
            self._close()
            raise

    def _start(self, loop: asyncio.AbstractEventLoop | None, *, until_idle: bool) -> None:
        assert self._engines is not None
        self._control = Control(
            self._engines,
            self._state,
            name=self.name,
            queues=self.queues,
            kinds=list(self.queue.core.handlers),
            concurrency=self.concurrency,
            loop=loop,
            until_idle=until_idle,
        )
        settings = self.queue.settings
        if settings.listen and not until_idle:
            self._listener = Listener(
                self._engines.listen,
                self.queue.core.ctx.channel,
                self._control.hint,
                probe=settings.listen_probe,
                timeout=settings.statement_timeout,
                deadlines=self.queue.core.deadlines,
            )
            self._listener.start()
        if self._stop_early is not None:  # a signal came first: nothing may be claimed any more
            self._control.drain(self._stop_early)
        self._control.start()
        log.info("worker %s works on %s", self.name, ", ".join(self.queues))

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        if self._engines is not None:
            self._engines.dispose()
            self._engines = None

    def _has_coroutines(self) -> bool:
        return any(x.is_async for x in self.queue.core.handlers.values())

    def _count(self) -> int:
        stats = self._state.stats
        return stats.completed + stats.failed + stats.released + stats.cancelled + stats.lease_lost

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._stop_early is not None:
            os._exit(128 + number)
        log.warning("%s: draining; once more ends the process at once", signal.Signals(number).name)
        self.stop()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _cancel_all(loop)
    finally:
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Give coroutines that outlived the worker a last chance to clean up."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    loop.run_until_complete(loop.shutdown_asyncgens())
