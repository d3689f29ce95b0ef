"""What a handler is given: its run, and the only way in which it may write for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

from runqueue.aio import AsyncRunQueue
from runqueue.errors import LeaseLost, RunCancelled
from runqueue.queue import RunQueue
from runqueue.transactions import AsyncTransaction, Transaction
from runqueue.worker.execution import Execution
from runqueue.worker.outcome import Stop


class _Context:
    """The run, as plain attributes: `id`, `tenant_id`, `kind`, `queue`, `input`, `budget`, `attempt`, `checkpoint`.

    `schema` is the install's PostgreSQL schema, for those who write to tables in it.
    """

    def __init__(self, execution: Execution) -> None:
        run = execution.claimed.run
        self._execution = execution
        self.id: UUID = run.id
        self.tenant_id: str = run.tenant_id
        self.queue: str = run.queue
        self.kind: str = run.kind
        self.input: Any = run.input
        self.budget: Any = run.budget
        self.attempt: int = run.attempts
        self.checkpoint: Any = execution.claimed.checkpoint
        self.schema: str = execution.core.ctx.t.schema

    @property
    def cancel_requested(self) -> bool:
        """Whether the handler should stop: a cancel, its timeout, a shutdown, or a lost lease."""
        return self._execution.cancel_requested.is_set()

    @property
    def time_left(self) -> float | None:
        """Seconds until the handler's timeout, None where it has none."""
        timeout = self._execution.spec.timeout
        return None if timeout is None else max(0.0, self._execution.started + timeout - time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raise RunCancelled if the handler should stop, LeaseLost if it may no longer write."""
        self._check()
        if self.cancel_requested:
            raise RunCancelled(f"run {self.id} was asked to stop")

    def _check(self) -> None:
        if not self._execution.writable:
            raise LeaseLost([self._execution.claimed.lease])

    def _hear_of(self, error: LeaseLost) -> None:
        if self._execution.lease in error.leases:  # it may be about another run that the handler steers
            self._execution.tell(Stop.LOST, force_in=0.0, abandon_in=0.0)


class RunContext(_Context):
    """For `async def` handlers. All methods belong to the handler's event loop."""

    def __init__(self, execution: Execution, queue: AsyncRunQueue, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(execution)
        self._queue = queue
        self._cancelled = asyncio.Event()
        self._loop = loop
        execution.on_cancel = self._hear
        if execution.cancel_requested.is_set():
            self._cancelled.set()

    def _hear(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancelled.set)

    async def wait_cancelled(self) -> None:
        """Wait until the handler should stop."""
        await self._cancelled.wait()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """A transaction that commits your rows, events, checkpoint and child runs together, while the lease is yours.

        Raises LeaseLost, and nothing is committed. Do not wait for models or tools inside: a session that is idle in it
        for longer than a lease is ended by the server.
        """
        self._check()
        try:
            async with self._queue.transaction(self._execution.lease) as tx:
                tx.pending.tenant_id = self.tenant_id
                yield tx
        except LeaseLost as error:
            self._hear_of(error)
            raise
        if tx.pending.checkpoint is not None:
            self.checkpoint = tx.pending.state

    async def emit(self, type: str, data: Any = None) -> None:  # noqa: A002 - the stream's own word
        """Add one event to the run's stream, in a fenced transaction of its own. Raises LeaseLost and InvalidRun."""
        async with self.transaction() as tx:
            await tx.emit(type, data)


class SyncRunContext(_Context):
    """For `def` handlers, which run in a thread of their own."""

    def __init__(self, execution: Execution, queue: RunQueue) -> None:
        super().__init__(execution)
        self._queue = queue

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Block until the handler should stop, or `timeout` seconds passed; return whether it should."""
        return self._execution.cancel_requested.wait(timeout)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """As RunContext.transaction."""
        self._check()
        try:
            with self._queue.transaction(self._execution.lease) as tx:
                tx.pending.tenant_id = self.tenant_id
                yield tx
        except LeaseLost as error:
            self._hear_of(error)
            raise
        if tx.pending.checkpoint is not None:
            self.checkpoint = tx.pending.state

    def emit(self, type: str, data: Any = None) -> None:  # noqa: A002 - the stream's own word
        """As RunContext.emit."""
        with self.transaction() as tx:
            tx.emit(type, data)
