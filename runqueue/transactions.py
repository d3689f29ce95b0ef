"""The fenced transaction: the caller's rows, events, a checkpoint and child runs, together or not at all.

Events and the checkpoint are kept here until the end, and written with the fence in the last statement: so the run's
row is locked only from there to the commit, and a heartbeat never waits on a handler.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RootTransaction, event, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from runqueue import values
from runqueue.core import Core
from runqueue.errors import InvalidRun, RunqueueError
from runqueue.operations import fenced, produce
from runqueue.operations.redacting import event_type
from runqueue.types import Lease, NewRun, Run


class Pending:
    """What a fenced transaction will write at its end."""

    def __init__(self, core: Core, lease: Lease) -> None:
        self.core = core
        self.lease = lease
        self.tenant_id: str | None = None
        self.events: list[tuple[str, str]] = []
        self.checkpoint: str | None = None
        self.state: Any = None
        self.spent = 0.0
        self._root: RootTransaction | None = None
        self._ending = False

    def emit(self, type_: str, data: Any = None) -> None:
        """Add an event. Raises InvalidRun."""
        self._check_open()
        self.events.append((event_type(self.core.ctx, type_), self.core.encode(data, "event")))

    def save(self, state: Any) -> None:
        """Replace the checkpoint. Raises InvalidRun."""
        self._check_open()
        self.checkpoint, self.state = self.core.encode(state, "checkpoint"), state

    def spend(self, amount: float) -> None:
        """Add to what the run has spent. Raises InvalidRun."""
        self._check_open()
        self.spent += values.seconds(amount, field="amount", high=1e15)

    def child(self, kind: str, input: Any, tenant_id: str | None, options: dict[str, Any]) -> NewRun:
        """A child run, of this run's tenant unless another is named."""
        tenant = tenant_id or self.tenant_id
        if tenant is None:
            raise InvalidRun("tenant_id", "must be given")
        return NewRun(kind=kind, input=input, tenant_id=tenant, **options)

    def begin(self, connection: Connection) -> None:
        """Let the server end the transaction of a holder that froze in it: its locks would outlive its lease."""
        idle = f"{max(1, int(self.core.ctx.settings.lease * 1000))}ms"
        with self.core.guard(connection):
            self.core.isolation(connection)
            connection.execute(select(func.set_config("idle_in_transaction_session_timeout", idle, True)))
        self._root = connection.get_transaction()
        event.listen(connection, "commit", self._refuse_early_commit)

    def commit(self, connection: Connection) -> None:
        """Write what is pending with the fence, and commit. Raises LeaseLost, and nothing is committed."""
        self._ending, root = True, self._root
        if root is None or not root.is_active or connection.get_transaction() is not root:
            self.roll_back(connection)
            raise RunqueueError("the transaction was ended inside its block: only the end of the block may do that")
        with self.core.guard(connection):
            fenced.write(connection, self.core.ctx, self.lease, self.events, self.checkpoint, self.spent)
            connection.commit()

    def roll_back(self, connection: Connection) -> None:
        """Undo all. A session that is dead must not hide, by its own error, the one that is being raised."""
        self._ending = True
        if connection.closed or connection.invalidated:
            return
        try:
            with self.core.guard(connection):
                connection.rollback()
        except Exception:
            connection.invalidate()

    def _check_open(self) -> None:
        if self._ending:
            raise RunqueueError("the transaction has ended: nothing can be added to it")

    def _refuse_early_commit(self, connection: Connection) -> None:
        del connection
        if not self._ending:
            raise RunqueueError("a fenced transaction commits at the end of its block, with the fence, and only there")


class Transaction:
    """A fenced transaction of a sync handler. `connection` is inside it: write your own rows through it."""

    def __init__(self, connection: Connection, pending: Pending) -> None:
        self.connection = connection
        self.pending = pending

    def emit(self, type: str, data: Any = None) -> None:  # noqa: A002 - the stream's own word
        """Add an event to the run's stream, visible at the commit. Raises InvalidRun."""
        self.pending.emit(type, data)

    def save_checkpoint(self, state: Any) -> None:
        """Store what the next attempt starts from, at the commit. Raises InvalidRun."""
        self.pending.save(state)

    def spend(self, amount: float) -> None:
        """Add to what the run has spent, in a unit of your own: tokens, money. Raises InvalidRun."""
        self.pending.spend(amount)

    def enqueue(self, kind: str, input: Any = None, *, tenant_id: str | None = None, **options: Any) -> Run:
        """Enqueue a child run, which exists if this transaction commits. Options are those of `RunQueue.enqueue`."""
        pending = self.pending
        new = [pending.child(kind, input, tenant_id, options)]
        return produce.enqueue_many(self.connection, pending.core.ctx, new, pending.lease.run_id)[0]


class AsyncTransaction:
    """A fenced transaction of an async handler. `connection` is inside it: write your own rows through it."""

    def __init__(self, connection: AsyncConnection, pending: Pending) -> None:
        self.connection = connection
        self.pending = pending

    async def emit(self, type: str, data: Any = None) -> None:  # noqa: A002 - the stream's own word
        """Add an event to the run's stream, visible at the commit. Raises InvalidRun."""
        self.pending.emit(type, data)

    async def save_checkpoint(self, state: Any) -> None:
        """Store what the next attempt starts from, at the commit. Raises InvalidRun."""
        self.pending.save(state)

    async def spend(self, amount: float) -> None:
        """Add to what the run has spent, in a unit of your own: tokens, money. Raises InvalidRun."""
        self.pending.spend(amount)

    async def enqueue(self, kind: str, input: Any = None, *, tenant_id: str | None = None, **options: Any) -> Run:
        """Enqueue a child run, which exists if this transaction commits. Options are those of `RunQueue.enqueue`."""
        pending = self.pending
        new = [pending.child(kind, input, tenant_id, options)]
        made = await self.connection.run_sync(produce.enqueue_many, pending.core.ctx, new, pending.lease.run_id)
        return made[0]
