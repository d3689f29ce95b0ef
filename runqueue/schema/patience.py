"""Waiting for locks without making others wait.

A statement that waits for ACCESS EXCLUSIVE makes everybody wait who comes after it, readers too. So it waits a moment
only; then the transaction is given up, those behind it go on, and all of it is tried again a little later.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import OperationalError

from runqueue.errors import RunqueueError
from runqueue.schema.locks import locks

T = TypeVar("T")

_LOCK_TIMEOUT, _DEADLOCK = "55P03", "40P01"
_PAUSE, _LONGEST_PAUSE = 0.1, 2.0

_HOLDERS = text(
    """
    select l.pid, a.state, a.query, extract(epoch from clock_timestamp() - a.xact_start)::int
    from pg_locks l left join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid() and l.mode = any(:modes)
      and l.database = (select oid from pg_database where datname = current_database())
      and (l.relation = to_regclass(:name)
           or l.relation in (select relid from pg_partition_tree(to_regclass(:name)))
           or l.relation in (select indrelid from pg_index where indexrelid = to_regclass(:name)))
    group by l.pid, a.state, a.query, a.xact_start order by a.xact_start limit 3
    """
)
_OLDEST = text(
    """
    select pid, state, query, extract(epoch from clock_timestamp() - xact_start)::int
    from pg_stat_activity where xact_start is not null and pid <> pg_backend_pid() and backend_type = 'client backend'
    order by xact_start limit 3
    """
)


def patiently(engine: Engine, schema: str, work: Callable[[Connection], T], *, wait: float, lock_timeout: float) -> T:
    """Do `work` in a transaction, again from the start for as long as it gets no lock, at most for `wait` seconds.

    No statement waits longer than `lock_timeout` for a table. Raises RunqueueError that says who holds the lock.
    """
    deadline, pause, sleeping = time.monotonic() + wait, _PAUSE, threading.Event()
    while True:
        try:
            with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
                take_turn(connection, schema, deadline - time.monotonic(), wait)
                _set(connection, "lock_timeout", lock_timeout)
                return work(connection)
        except OperationalError as error:
            if _state(error) not in (_LOCK_TIMEOUT, _DEADLOCK):
                raise
            left = deadline - time.monotonic()
            if left <= 0:
                raise RunqueueError(f"{_refused(error, schema, wait)}{blockers(engine, error.statement)}") from error
        sleeping.wait(min(left, pause * random.uniform(0.5, 1.5)))
        pause = min(pause * 2, _LONGEST_PAUSE)


def take_turn(connection: Connection, schema: str, left: float, wait: float) -> None:
    """Keep other migrations of this schema out until the transaction ends: taken before the version is read."""
    _set(connection, "statement_timeout", 0)  # what a role has set is for its ordinary work
    _set(connection, "lock_timeout", max(left, 0.001))
    try:
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"runqueue.migrate.{schema}", 0))))
    except OperationalError as error:
        if _state(error) != _LOCK_TIMEOUT:
            raise
        raise RunqueueError(f"another process has been migrating {schema!r} for {wait:g} s") from error


@contextmanager
def index_turn(connection: Connection, schema: str, wait: float) -> Iterator[None]:
    """Keep others from building indexes of this schema, outside of a transaction.

    CREATE INDEX CONCURRENTLY cannot run in a transaction, so neither can its lock; and a session that waits for a lock
    counts as an old snapshot, which the index build would wait for: hence trying, not waiting.
    """
    key = func.hashtextextended(f"runqueue.indexes.{schema}", 0)
    pause = threading.Event()
    for _ in range(max(1, int(wait / 0.1))):
        if connection.execute(select(func.pg_try_advisory_lock(key))).scalar_one():
            break
        pause.wait(0.1)
    else:
        raise RunqueueError(f"another process has been building the indexes of {schema!r} for {wait:g} s")
    try:
        yield
    finally:
        connection.execute(select(func.pg_advisory_unlock(key)))


@contextmanager
def index_patience(engine: Engine, connection: Connection, schema: str, wait: float) -> Iterator[None]:
    """For statements that build concurrently: nobody waits behind them, so they may wait `wait` seconds themselves."""
    for name, seconds in (("statement_timeout", 0.0), ("lock_timeout", wait)):
        _set(connection, name, seconds, local=False)
    try:
        yield
    except OperationalError as error:
        if _state(error) != _LOCK_TIMEOUT:
            raise
        raise RunqueueError(f"{_refused(error, schema, wait)}{blockers(engine, error.statement)}") from error
    finally:
        if not connection.invalidated:
            for statement in ("reset statement_timeout", "reset lock_timeout"):
                connection.exec_driver_sql(statement)


def blockers(engine: Engine, statement: str | None) -> str:
    """Who holds a lock that the statement waits for, in words; empty where nobody does any more."""
    found = []
    with engine.connect() as connection:
        if statement is None or "CONCURRENTLY" in statement:
            found = list(connection.execute(_OLDEST))  # it waits for transactions, not only for locks on its table
        else:
            for lock in locks(statement):
                found += connection.execute(_HOLDERS, {"name": lock.table, "modes": lock.conflicting})
    return "".join(
        "; a prepared transaction (see pg_prepared_xacts)"
        if pid is None
        else f"; process {pid}, {state}, in a transaction for {age} s: {' '.join((query or '').split())[:200]}"
        for pid, state, query, age in found
    )


def _refused(error: OperationalError, schema: str, wait: float) -> str:
    what = " ".join((error.statement or "").split())[:80]
    return f"the migration of {schema!r} got no lock in {wait:g} s, and changed nothing: {what!r} waited"


def _state(error: OperationalError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def _set(connection: Connection, name: str, seconds: float, *, local: bool = True) -> None:
    connection.execute(select(func.set_config(name, f"{round(seconds * 1000)}ms", local)))
