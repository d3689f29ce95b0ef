"""Interleavings that are forced, not hoped for: a statement is held at a known point, seen to wait, and let go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from support.tools import eventually

PATIENCE = 30.0
"""A deadline for what must happen; no test waits so long when all is well."""

GATE = """
create schema traps;
create function traps.statement_timestamp() returns timestamptz language plpgsql volatile as $$
begin
    perform pg_catalog.pg_advisory_lock_shared(4711);
    perform pg_catalog.pg_advisory_unlock_shared(4711);
    return pg_catalog.statement_timestamp();
end $$;
"""


def background(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Call a function in a thread of its own; the future has what it returned or raised."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="test", daemon=True).start()
    return future


def result(future: Future[Any]) -> Any:
    """What came of `background`, within a deadline."""
    return future.result(PATIENCE)


def wait_blocked(engine: Engine, count: int = 1) -> None:
    """Wait until so many sessions of this database wait for a lock."""
    waiting = text(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )

    def blocked() -> bool:
        with engine.connect() as connection:
            return bool(connection.execute(waiting).scalar_one() >= count)

    eventually(blocked, PATIENCE, what=f"{count} waiting sessions")


def race(engine: Engine, count: int, function: Callable[[int], Any]) -> list[Any]:
    """Call `function(n)` in so many threads at the same moment; what each returned, or the exception it raised."""
    start = threading.Barrier(count)

    def call(n: int) -> Any:
        start.wait(PATIENCE)
        return function(n)

    futures = [background(call, n) for n in range(count)]
    return [future.exception(PATIENCE) or future.result() for future in futures]


class Gate:
    """Holds statements of the library that read its clock, after their snapshot is taken and before any row is locked.

    Engines from `engine()` find a `statement_timestamp()` that waits while the gate is shut.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made: list[Engine] = []
        with engine.begin() as connection:
            connection.exec_driver_sql(GATE)

    def engine(self) -> Engine:
        """An engine whose statements pass through the gate."""
        made = create_engine(self._engine.url, connect_args={"options": "-csearch_path=traps,pg_catalog"})
        self._made.append(made)
        return made

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Nobody passes inside the block."""
        with self._engine.connect() as connection:
            connection.execute(text("select pg_advisory_lock(4711)"))
            try:
                yield
            finally:
                connection.execute(text("select pg_advisory_unlock(4711)"))

    def close(self) -> None:
        """Dispose of the engines."""
        for engine in self._made:
            engine.dispose()


@contextmanager
def uncommitted(engine: Engine, function: Callable[[Connection], Any] | None = None) -> Iterator[Connection]:
    """A transaction that stays open in the block; rolled back at the end, unless the block has committed it."""
    with engine.connect() as connection:
        connection.begin()
        if function is not None:
            function(connection)
        yield connection
        connection.rollback()


def lock_row(connection: Connection, run_id: Any, mode: str = "update") -> None:
    """Lock a run's row in a transaction."""
    statement = text(f"select 1 from runqueue.agent_runs where id = :id for {mode}")
    assert connection.execute(statement, {"id": run_id}).one()
