"""Both queues behind one face, so that each property is written once: the async queue's methods, called as if sync."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from runqueue import AsyncRunQueue, ClaimedRun, Lease, RunQueue

TABLES = ("agent_runs", "agent_run_events", "agent_run_checkpoints", "agent_run_keys", "agent_run_pauses")


class Blocking:
    """An object whose coroutines, async context managers and async generators are run on one loop, each to its end."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if isinstance(value, AsyncConnection):
            return Blocking(value, self._runner)
        return self._call(value) if callable(value) else value

    def _call(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            value = function(*args, **kwargs)
            if hasattr(value, "__aenter__") and not inspect.isawaitable(value):
                return self._context(value)
            if hasattr(value, "__anext__"):
                return self._items(value)
            return self._wait(value) if inspect.isawaitable(value) else value

        return call

    def _wait(self, awaitable: Any) -> Any:
        async def waiting() -> Any:
            return await awaitable

        return self._runner.run(waiting())

    @contextmanager
    def _context(self, manager: Any) -> Iterator[Any]:
        inner = self._wait(manager.__aenter__())
        try:
            yield Blocking(inner, self._runner)
        except BaseException as error:
            if not self._wait(manager.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._wait(manager.__aexit__(None, None, None))

    def _items(self, generator: Any) -> Iterator[Any]:
        end = object()
        while (item := self._wait(anext(generator, end))) is not end:
            yield item


class Fleet:
    """Queues of one database, of any policy, all sync or all async."""

    def __init__(self, engine: Engine, async_engine: AsyncEngine | None, runner: asyncio.Runner, settings: Any) -> None:
        self.engine = engine
        self.face = "sync" if async_engine is None else "async"
        self.settings = settings
        self._runner = runner
        self._async_engine = async_engine
        self._queues: list[Any] = []

    def __call__(self, policy: str, **options: Any) -> Any:
        """A queue with this claim policy."""
        options = {"settings": self.settings, **options}
        queue: Any
        if self._async_engine is None:
            queue = RunQueue(self.engine, claim=policy, **options)
        else:
            queue = Blocking(AsyncRunQueue(self._async_engine, claim=policy, **options), self._runner)
        self._queues.append(queue)
        return queue

    def close(self) -> None:
        """Everything must have been given back."""
        for queue in self._queues:
            queue.close()
        if self._async_engine is not None:
            held = self._async_engine.pool.checkedout()  # type: ignore[attr-defined]
            assert held == 0, f"{held} connections were not given back to the pool"


class Facts:
    """What the database holds, read past the library."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """Run a statement in a transaction of its own."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def row(self, run_id: Any) -> dict[str, Any]:
        """The row of a run."""
        [row] = self.sql("select to_jsonb(r) from runqueue.agent_runs r where id = :id", id=run_id)
        return dict(row[0])

    def everything(self) -> dict[str, list[str]]:
        """Every row of every table, and every change that any run ever had, as text."""
        names = [f"runqueue.{x}" for x in TABLES] + ["runqueue_audit.audit"]
        if self.sql("select to_regclass('public.mine') is not null")[0][0]:
            names.append("public.mine")
        return {x: [row[0] for row in self.sql(f"select t::text from {x} t order by 1")] for x in names}


def claim_one(q: Any, worker: str = "w", **options: Any) -> ClaimedRun:
    """Claim, and there must be exactly one run to claim."""
    [claimed] = q.claim(worker, limit=10, **options)
    return claimed


def lose(q: Any, facts: Facts, lease: Lease, worker: str = "w") -> ClaimedRun:
    """Let the lease end, and the run be leased again: by the sweep and a claim, or by the claim alone."""
    expire(facts, lease)
    q.reap()
    return claim_one(q, worker)


def expire(facts: Facts, *leases: Lease) -> None:
    """Let leases have ended, long enough ago for any backoff to have passed."""
    for lease in leases:
        changed = facts.sql(
            "update runqueue.agent_runs set locked_until = clock_timestamp() - interval '1 s', "
            "updated_at = clock_timestamp() - interval '1 h' where id = :id and status = 'leased' returning 1",
            id=lease.run_id,
        )
        assert changed, f"run {lease.run_id} is not leased"
