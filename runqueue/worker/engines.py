"""The databases of a worker: a pool of its own for its threads, and the queue faces that its handlers write through."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from runqueue.aio import AsyncRunQueue
from runqueue.core import connect_args, database_url
from runqueue.queue import RunQueue

_GENERIC_PLANS = "select set_config('plan_cache_mode', 'force_generic_plan', false) where pg_backend_pid() = %s"


class Engines:
    """Made from the application's engine: what it lacks, an async or a sync twin, is made from its URL.

    A pool of our own, so that handlers that use up theirs cannot keep a heartbeat from its connection.
    """

    def __init__(
        self, queue: RunQueue | AsyncRunQueue, engine: Engine | None, async_engine: AsyncEngine | None
    ) -> None:
        self._queue = queue
        self._core = queue.core
        self._settings = queue.settings
        self._given, self._given_async = engine, async_engine
        self._own: list[Engine] = []
        self._own_async: list[AsyncEngine] = []

    @cached_property
    def control(self) -> RunQueue:
        """For the control thread."""
        ctx = dataclasses.replace(self._core.ctx, patient=False)
        return RunQueue.over(dataclasses.replace(self._core, ctx=ctx), self._pool())

    @cached_property
    def heartbeat(self) -> RunQueue:
        """For the heartbeat thread; its calls must fail early enough to be tried again before the leases end."""
        settings = self._settings
        timeout = min(settings.statement_timeout, max(1.0, settings.lease / 3))
        ctx = dataclasses.replace(self._core.ctx, settings=dataclasses.replace(settings, statement_timeout=timeout))
        return RunQueue.over(dataclasses.replace(self._core, ctx=ctx), self._pool())

    @cached_property
    def handlers(self) -> RunQueue:
        """For handlers in threads."""
        if isinstance(self._queue, RunQueue):
            return self._queue
        return RunQueue.over(self._core, self._given or self._sync_twin(pool_size=10, max_overflow=50))

    @cached_property
    def async_handlers(self) -> AsyncRunQueue:
        """For coroutine handlers."""
        if isinstance(self._queue, AsyncRunQueue):
            return self._queue
        return AsyncRunQueue.over(self._core, self._given_async or self._async_twin())

    def listen(self) -> psycopg.Connection[Any]:
        """A raw connection for LISTEN, direct where a `listen_url` is set."""
        if self._settings.listen_url is not None:
            url = database_url(self._settings.listen_url, "postgresql")
            arguments = connect_args(self._settings)
            return psycopg.connect(url.render_as_string(hide_password=False), **arguments)
        fairy = self.control.engine.raw_connection()
        connection = fairy.driver_connection
        fairy.detach()
        return connection  # type: ignore[return-value]  # psycopg's, as the URL's driver is

    def dispose(self) -> None:
        """Close what was made here from sync code."""
        for engine in self._own:
            engine.dispose()

    async def dispose_async(self) -> None:
        """Close what was made here for the event loop."""
        for engine in self._own_async:
            await engine.dispose()

    def _pool(self) -> Engine:
        engine = self._own_pool()
        event.listen(engine, "connect", self._plan_once)
        return engine

    def _plan_once(self, connection: psycopg.Connection[Any], _: object) -> None:
        """Let a session of ours plan each statement once: planning a claim takes longer than running it.

        Not where a pooler may hand the session to others: there it is not the one that the driver was told of.
        """
        with self._core.deadlines.guard_socket(connection.fileno(), self._settings.statement_timeout):
            connection.autocommit = True
            connection.execute(_GENERIC_PLANS, [connection.info.backend_pid])
            connection.autocommit = False

    def _own_pool(self) -> Engine:
        if isinstance(self._queue, RunQueue) or self._given is not None:
            host = self._given or self._queue.engine
            assert isinstance(host, Engine)
            pool = host.pool.recreate()
            pool._pre_ping = False  # asked outside of our deadlines; a dead connection costs one call, tried again
            own = Engine(pool, host.dialect, host.url, hide_parameters=True)
            self._own.append(own)
            return own
        return self._sync_twin(pool_size=2, max_overflow=2)

    def _sync_twin(self, **pool: int) -> Engine:
        engine = create_engine(
            database_url(self._queue.engine.url, "postgresql+psycopg"),
            connect_args=connect_args(self._settings),
            hide_parameters=True,
            **pool,
        )
        self._own.append(engine)
        return engine

    def _async_twin(self) -> AsyncEngine:
        engine = create_async_engine(
            database_url(self._queue.engine.url, "postgresql+psycopg"),
            connect_args=connect_args(self._settings),
            hide_parameters=True,
            pool_size=10,
            max_overflow=50,
        )
        self._own_async.append(engine)
        return engine
