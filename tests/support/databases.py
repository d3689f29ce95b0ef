"""Databases of tests: made, emptied, and looked at when they should be at rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from sqlalchemy import text

from support.tools import autocommit, eventually, with_database

LINGERING = {"runqueue-deadlines"}
"""Threads that end by themselves once nobody has used them for a while."""

EMPTY = """
set session_replication_role = replica;
delete from runqueue.agent_runs;
delete from runqueue.agent_run_events;
delete from runqueue.agent_run_checkpoints;
delete from runqueue.agent_run_keys;
delete from runqueue.agent_run_pauses;
delete from runqueue_audit.audit;
drop table if exists public.mine;
set session_replication_role = origin
"""


def empty(url: str) -> None:
    """Remove all rows, past the audit: what a new database would be, and cheaper."""
    with autocommit(url) as connection:
        connection.exec_driver_sql(EMPTY)


@contextmanager
def new_database(server_url: str, template: str = "template0") -> Iterator[str]:
    """A database that is dropped afterwards."""
    name = f"runqueue_test_{uuid4().hex[:16]}"
    with autocommit(server_url) as connection:
        connection.exec_driver_sql(f'create database "{name}" template "{template}"')
    try:
        yield with_database(server_url, name)
    finally:
        with autocommit(server_url) as connection:
            connection.exec_driver_sql(f'drop database if exists "{name}" with (force)')


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
