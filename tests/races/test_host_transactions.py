"""Enqueue and cancel in the application's transaction: they exist, and are announced, if and when it commits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from support.tools import eventually, terminate_backends

from runqueue import AsyncRunQueue, RunNotFound, RunQueue

KINDS = ["Connection", "Session", "AsyncConnection", "AsyncSession"]


class Host:
    """An application's transaction of one of the four kinds, called as if sync."""

    def __init__(self, kind, url, settings):
        self._runner = asyncio.Runner()
        self._kind = kind
        if kind.startswith("Async"):
            self._engine = create_async_engine(url)
            self._queue = AsyncRunQueue(self._engine, settings=settings)
            self.it = AsyncSession(self._engine) if kind == "AsyncSession" else self._run(self._engine.connect())
        else:
            self._engine = create_engine(url)
            self._queue = RunQueue(self._engine, settings=settings)
            self.it = Session(self._engine) if kind == "Session" else self._engine.connect()
        self._run(self.it.begin())

    def _run(self, value):
        async def waiting():
            return await value

        return self._runner.run(waiting()) if hasattr(value, "__await__") else value

    def enqueue(self, key=None, input=None):
        return self._run(self._queue.enqueue("k", input, tenant_id="t", idempotency_key=key, connection=self.it))

    def cancel(self, run_id):
        return self._run(self._queue.cancel(run_id, connection=self.it))

    def get(self, run_id):
        return self._run(self._queue.get(run_id, connection=self.it))

    def execute(self, statement):
        self._run(self.it.execute(text(statement)))

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """A savepoint: kept, unless the block raises Undo."""
        point = self.it.begin_nested()
        if hasattr(point, "__await__"):
            point = self._run(point)
        try:
            yield
        except Undo:
            self._run(point.rollback())
        else:
            self._run(point.commit())

    def commit(self):
        self._run(self.it.commit())

    def rollback(self):
        self._run(self.it.rollback())

    def close(self):
        self._run(self.it.close())
        disposed = self._engine.dispose()
        self._run(disposed)
        self._runner.close()


class Base(DeclarativeBase):
    """The host's models."""


class Order(Base):
    """A row of the host."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Undo(Exception):
    """Roll the savepoint back."""


@pytest.fixture(params=KINDS)
def host(request, url, settings):
    host = Host(request.param, url, settings)
    yield host
    host.close()


@pytest.fixture
def other(engine, settings):
    return RunQueue(engine, settings=settings)


@pytest.fixture
def heard(url):
    """What a listener hears: call it to get all that came by now."""
    plain = url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("listen runqueue_runqueue")

        def hear():
            connection.execute("select 1")  # what was committed before this is delivered with its answer
            return [x.payload for x in connection.notifies(timeout=0)]

        yield hear


def ids(queue):
    return {run.id for run in queue.list(limit=100).runs}


def test_a_run_is_seen_and_announced_at_the_commit(host, other, heard):
    run = host.enqueue("x")
    assert host.get(run.id) == run
    with pytest.raises(RunNotFound):
        other.get(run.id)
    assert other.claim("hungry", limit=5) == []
    assert heard() == []
    host.commit()
    assert other.get(run.id) == run
    assert len(heard()) == 1
    assert [x.run.id for x in other.claim("hungry", limit=5)] == [run.id]


def test_a_rollback_leaves_nothing_and_frees_the_key(host, other, heard, facts):
    gone = host.enqueue("x", 1)
    host.rollback()
    assert heard() == []
    assert all(not rows for rows in facts.everything().values())
    mine = other.enqueue("k", 2, tenant_id="t", idempotency_key="x")
    assert mine.id != gone.id


def test_an_undone_savepoint_takes_only_its_own_runs(host, other, heard):
    outer = host.enqueue()
    with host.savepoint():
        host.enqueue("x", 1)
        raise Undo
    again = host.enqueue("x", 2)
    host.commit()
    assert ids(other) == {outer.id, again.id}
    assert len(heard()) == 1


def test_a_kept_savepoint_goes_with_its_transaction(host, other, heard):
    with host.savepoint():
        host.enqueue("x", 1)
    host.rollback()
    assert ids(other) == set()
    assert heard() == []
    other.enqueue("k", 2, tenant_id="t", idempotency_key="x")


def test_three_savepoints_deep(host, other):
    kept = []
    with host.savepoint():
        kept.append(host.enqueue("a"))
        with host.savepoint():
            host.enqueue("b")
            with host.savepoint():
                host.enqueue("c")
            raise Undo
        with host.savepoint(), host.savepoint():
            kept.append(host.enqueue("b"))
    host.commit()
    assert ids(other) == {x.id for x in kept}


def test_the_hosts_rows_and_the_run_commit_together(host, other, facts):
    facts.sql("create table public.orders (id int primary key)")
    host.execute("insert into public.orders values (1)")
    run = host.enqueue(input={"order": 1})
    assert facts.sql("select * from public.orders") == []
    host.commit()
    assert facts.sql("select * from public.orders") == [(1,)]
    assert other.get(run.id).input == {"order": 1}


def test_a_cancel_belongs_to_the_transaction(host, other, heard):
    run = other.enqueue("k", tenant_id="t")
    heard()
    assert host.cancel(run.id).status == "cancelled"
    assert other.get(run.id).status == "pending"
    host.rollback()
    assert other.get(run.id).status == "pending"
    assert heard() == []


def test_an_autocommit_connection_stores_at_once(engine, other, heard):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        run = other.enqueue("k", tenant_id="t", idempotency_key="x", connection=connection)
        assert other.get(run.id) == run
        assert len(heard()) == 1
        assert other.enqueue("k", tenant_id="t", idempotency_key="x", connection=connection) == run


def test_a_session_in_the_middle_of_a_flush_keeps_both(engine, other):
    Base.metadata.create_all(engine)
    made = []
    with Session(engine) as session, session.begin():
        event.listen(session, "after_flush", lambda s, _: made.append(other.enqueue("k", tenant_id="t", connection=s)))
        session.add(Order(id=1))
    assert ids(other) == {made[0].id}


def test_a_delay_counts_from_the_call_in_an_old_transaction(engine, other, facts):
    with engine.begin() as connection:
        connection.execute(text("select pg_sleep(0.3)"))
        run = other.enqueue("k", tenant_id="t", delay=10, connection=connection)
        [[old]] = connection.execute(text("select now()")).all()
        assert (run.available_at - old).total_seconds() >= 10.3


def test_a_process_that_dies_before_the_commit_leaves_nothing(engine, other, url):
    doomed = create_engine(url, connect_args={"application_name": "doomed"})
    with pytest.raises(Exception, match=r"terminat|closed|lost"), doomed.begin() as connection:  # noqa: PT012
        other.enqueue("k", tenant_id="t", idempotency_key="x", connection=connection)
        terminate_backends(url, "doomed")
        connection.execute(text("select 1"))
    doomed.dispose()
    eventually(lambda: ids(other) == set())
    other.enqueue("k", tenant_id="t", idempotency_key="x")
