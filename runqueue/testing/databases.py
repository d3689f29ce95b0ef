"""Databases of tests: made from a template, reached past the library, and looked at when they should be at rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text

from runqueue.core import Core
from runqueue.schema import migrate
from runqueue.testing import audit

T = TypeVar("T")

LINGERING = {"runqueue-deadlines"}
"""Threads that end by themselves once nobody has used them for a while."""


def eventually(condition: Callable[[], T], timeout: float = 10, *, what: str = "the condition") -> T:
    """Ask until the answer is true, and give it; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := condition():
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {timeout:g} s")
        time.sleep(0.02)


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


@contextmanager
def new_database(server_url: str, template: str = "template0") -> Iterator[str]:
    """The URL of a new database, which is dropped afterwards."""
    name = f"runqueue_test_{uuid4().hex[:16]}"
    with autocommit(server_url) as connection:
        connection.exec_driver_sql(f'create database "{name}" template "{template}"')
    try:
        yield with_database(server_url, name)
    finally:
        with autocommit(server_url) as connection:
            connection.exec_driver_sql(f'drop database if exists "{name}" with (force)')


def install(engine: Engine, core: Core) -> None:
    """What `runqueue migrate` makes for the claim policy and the plugins of this queue, and the audit."""
    migrate.upgrade(engine, schema=core.ctx.t.schema, indexes=core.indexes(), migrations=core.migrations())
    with engine.begin() as connection:
        audit.install(connection)


def at_rest(url: str) -> None:
    """INV7: no session of the library in a transaction, no thread of it alive."""
    busy = text(
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and application_name like 'runqueue%' and state like 'idle in transaction%'"
    )
    with autocommit(url) as connection:
        eventually(lambda: connection.execute(busy).scalar_one() == 0, 2, what="INV7: an end of all transactions")

    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("runqueue") and t.name not in LINGERING]

    eventually(lambda: not left(), 2, what="INV7: an end of the library's threads")
