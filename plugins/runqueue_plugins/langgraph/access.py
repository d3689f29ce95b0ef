"""How a saver gets at the database: through a run, fenced by its lease, or through a queue, to read and to tidy up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from runqueue import AsyncRunQueue, ClaimedRun, InvalidRun, RunQueue, RunqueueError

ONE_SNAPSHOT = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
READ_COMMITTED = {"isolation_level": "READ COMMITTED"}


class Holder(Protocol):
    """A run whose lease is held: a SyncRunContext, or a `Held`."""

    schema: str
    tenant_id: str

    def transaction(self) -> AbstractContextManager[Any]:
        """A fenced transaction."""


class AsyncHolder(Protocol):
    """A run whose lease is held: a RunContext, or an `AsyncHeld`."""

    schema: str
    tenant_id: str

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A fenced transaction."""


class Held:
    """A claimed run, for code that claims by itself and is no worker."""

    def __init__(self, queue: RunQueue, claimed: ClaimedRun) -> None:
        self.schema, self.tenant_id = queue.schema, claimed.run.tenant_id
        self._queue, self._lease = queue, claimed.lease

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction that commits only while the lease is the newest. Raises LeaseLost at its end."""
        return self._queue.transaction(self._lease)


class AsyncHeld:
    """As `Held`, on an AsyncRunQueue."""

    def __init__(self, queue: AsyncRunQueue, claimed: ClaimedRun) -> None:
        self.schema, self.tenant_id = queue.schema, claimed.run.tenant_id
        self._queue, self._lease = queue, claimed.lease

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """As `Held.transaction`."""
        return self._queue.transaction(self._lease)


def tenant_of(source: Any, tenant_id: str | None) -> str:
    """Whose threads a saver reaches: the run's tenant's; over a queue it must be named. Raises InvalidRun."""
    own = getattr(source, "tenant_id", None)
    if own is None and tenant_id is None:
        raise InvalidRun("tenant_id", "must be given: over a queue, a saver reaches the threads of one tenant")
    if own is not None and tenant_id not in (None, own):
        raise InvalidRun("tenant_id", f"must be the run's own, {own!r}, or left out")
    return own or tenant_id or ""


def refuse() -> RunqueueError:
    """What a saver over a queue says to a graph that wants to write."""
    return RunqueueError(
        "this saver can read, but a graph's state is written by the run that executes it: "
        "enqueue a run whose handler is made by graph_handler()"
    )


@contextmanager
def reading(source: Holder | RunQueue) -> Iterator[Connection]:
    """A connection to read from: over a queue one snapshot, in a transaction that cannot write."""
    if isinstance(source, RunQueue):
        with source.engine.connect() as connection:
            yield connection.execution_options(**ONE_SNAPSHOT)
    else:
        with source.transaction() as tx:
            yield tx.connection


@contextmanager
def tidying(source: Holder | RunQueue) -> Iterator[Connection]:
    """A connection to delete and copy with: over a queue in a transaction of its own, which is not fenced."""
    if isinstance(source, RunQueue):
        with source.engine.connect() as connection:
            connection.execution_options(**READ_COMMITTED)
            with connection.begin():
                yield connection
    else:
        with source.transaction() as tx:
            yield tx.connection


@contextmanager
def writing(source: Holder | RunQueue) -> Iterator[Connection]:
    """A connection in a fenced transaction. Raises LeaseLost at its end, and nothing is written."""
    if isinstance(source, RunQueue):
        raise refuse()
    with source.transaction() as tx:
        yield tx.connection


@asynccontextmanager
async def areading(source: AsyncHolder | AsyncRunQueue) -> AsyncIterator[AsyncConnection]:
    """As `reading`."""
    if isinstance(source, AsyncRunQueue):
        async with source.engine.connect() as connection:
            yield await connection.execution_options(**ONE_SNAPSHOT)
    else:
        async with source.transaction() as tx:
            yield tx.connection


@asynccontextmanager
async def atidying(source: AsyncHolder | AsyncRunQueue) -> AsyncIterator[AsyncConnection]:
    """As `tidying`."""
    if isinstance(source, AsyncRunQueue):
        async with source.engine.connect() as connection:
            await connection.execution_options(**READ_COMMITTED)
            async with connection.begin():
                yield connection
    else:
        async with source.transaction() as tx:
            yield tx.connection


@asynccontextmanager
async def awriting(source: AsyncHolder | AsyncRunQueue) -> AsyncIterator[AsyncConnection]:
    """As `writing`."""
    if isinstance(source, AsyncRunQueue):
        raise refuse()
    async with source.transaction() as tx:
        yield tx.connection
