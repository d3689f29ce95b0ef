"""Small acts that many tests do. Times are always the database's, a test's own clock may be off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text

T = TypeVar("T")


def with_database(url: str, name: str) -> str:
    """The URL of another database of the same server."""
    return make_url(url).set(database=name).render_as_string(hide_password=False)


@contextmanager
def autocommit(url: str) -> Iterator[Connection]:
    """A connection in autocommit mode, closed afterwards, and known to the server as the test's."""
    engine = create_engine(
        url, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args={"application_name": "test"}
    )
    with engine.connect() as connection:
        yield connection


def age(engine: Engine, run_id: UUID, seconds: float = 1) -> None:
    """Let a lease have ended so many seconds ago, and the last heartbeat so long before that no backoff is left."""
    statement = text(
        "update runqueue.agent_runs set locked_until = clock_timestamp() - make_interval(secs => :seconds), "
        "updated_at = clock_timestamp() - interval '1 hour' where id = :id and status = 'leased'"
    )
    with engine.begin() as connection:
        changed = connection.execute(statement, {"id": run_id, "seconds": seconds}).rowcount
    assert changed == 1, f"run {run_id} is not leased"


def make_due(engine: Engine, run_id: UUID) -> None:
    """Let a pending run be due now, whatever its backoff or schedule."""
    statement = text(
        "update runqueue.agent_runs set available_at = clock_timestamp() - interval '1 ms' "
        "where id = :id and status = 'pending'"
    )
    with engine.begin() as connection:
        assert connection.execute(statement, {"id": run_id}).rowcount == 1, f"run {run_id} is not pending"


def terminate_backends(url: str, application_name: str = "runqueue%") -> int:
    """End the sessions of this database whose name is like that; how many there were."""
    statement = text(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and application_name like :name"
    )
    with autocommit(url) as connection:
        return int(connection.execute(statement, {"name": application_name}).scalar_one())


def eventually(condition: Callable[[], T], timeout: float = 10, *, what: str = "the condition") -> T:
    """Ask until the answer is true, and give it; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := condition():
            return answer
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout:g} s"
        time.sleep(0.02)
