"""A migration waits for locks in short slices, so that nobody waits long behind it; and says who was in its way."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from sqlalchemy import NullPool, create_engine, event, text
from support.catalog import contents
from support.tools import autocommit

from runqueue.errors import RunqueueError
from runqueue.policies import Takeover
from runqueue.schema import migrate, revisions
from runqueue.schema.indexes import index_state
from runqueue.schema.patience import patiently
from runqueue.schema.tables import SCHEMA_VERSION, tables

SLICE, PATIENCE = 0.2, 1.5
"""What a statement of the migration waits, and what the other reader bears: a few slices, less than the whole."""


@pytest.fixture
def engine(blank_url):
    """A database that is at the first revision: the second one changes the runs."""
    engine = create_engine(blank_url, poolclass=NullPool)
    migrate.upgrade(engine)
    migrate.downgrade(engine, revisions.line()[0].revision)
    return engine


@contextmanager
def long_reader(engine):
    """A transaction that has read the runs, and does nothing now. Gives its process's id."""
    with engine.connect() as connection:
        connection.execute(text("select 'the long report' from runqueue.agent_runs")).all()
        yield connection.execute(text("select pg_backend_pid() -- the long report")).scalar_one()


@contextmanager
def other_readers(url):
    """A reader that comes again and again, and gives up where it waits too long; gives what it saw."""
    seen, stop, errors = [], threading.Event(), []

    def read():
        with autocommit(url) as connection:
            connection.execute(text(f"set lock_timeout = {round(PATIENCE * 1000)}"))
            while not stop.wait(0.01):
                try:
                    seen.append(connection.execute(text("select count(*) from runqueue.agent_runs")).scalar_one())
                except Exception as error:
                    errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(10)
    assert errors == []


def test_nobody_waits_longer_than_a_slice_behind_a_migration_and_it_names_who_was_in_its_way(engine, blank_url):
    with engine.connect() as connection:
        before = contents(connection, "runqueue")
    with other_readers(blank_url) as seen, long_reader(engine) as pid:
        with pytest.raises(RunqueueError, match=rf"'runqueue' got no lock in 3 s.*process {pid}.*the long report"):
            migrate.upgrade(engine, wait=3, lock_timeout=SLICE)
        assert len(seen) > 3
        with engine.connect() as connection:
            assert contents(connection, "runqueue") == before


def test_a_migration_goes_on_when_the_reader_has_ended(engine):
    tried = threading.Event()

    @event.listens_for(engine, "handle_error")
    def note(context):
        tried.set()

    done = []
    with long_reader(engine):
        thread = threading.Thread(target=lambda: done.append(migrate.upgrade(engine, lock_timeout=SLICE)))
        thread.start()
        assert tried.wait(10), "it did not meet the lock"
        assert done == []
    thread.join(20)
    assert done == [SCHEMA_VERSION]


def test_a_downgrade_waits_in_slices_too(engine, blank_url):
    migrate.upgrade(engine)
    tried = threading.Event()
    event.listen(engine, "handle_error", lambda context: tried.set())
    with other_readers(blank_url), long_reader(engine):
        thread = threading.Thread(target=lambda: migrate.downgrade(engine, revisions.line()[0].revision))
        thread.start()
        assert tried.wait(10), "it did not meet the lock"
    thread.join(20)
    assert migrate.current(engine) == 1


def test_an_index_waits_for_a_transaction_only_so_long_and_is_built_the_next_time(engine):
    migrate.upgrade(engine)
    indexes = tuple(Takeover().indexes(tables("runqueue")))
    name = str(indexes[0].name)
    with engine.connect() as holder:
        holder.execute(text("lock table runqueue.agent_runs in row exclusive mode"))
        pid = holder.execute(text("select pg_backend_pid()")).scalar_one()
        with pytest.raises(RunqueueError, match=rf"got no lock in 0.5 s.*{name}.*process {pid}"):
            migrate.upgrade(engine, indexes=indexes, wait=0.5)
    with engine.connect() as connection:
        assert index_state(connection, "runqueue", name) is False
        needs = migrate.needs(connection, indexes=indexes)
        assert ([x.name for x in needs.invalid], needs.missing) == ([name], ())
    migrate.upgrade(engine, indexes=indexes)
    with engine.connect() as connection:
        assert index_state(connection, "runqueue", name) is True


def test_rebuilding_an_index_makes_no_writer_wait(engine, blank_url):
    """Dropping the invalid one takes no lock that a long reader and a writer could feel."""
    migrate.upgrade(engine)
    indexes = tuple(Takeover().indexes(tables("runqueue")))
    with engine.connect() as holder, autocommit(blank_url) as connection:
        holder.execute(text("lock table runqueue.agent_runs in row exclusive mode"))
        connection.execute(text("set lock_timeout = '100ms'"))
        with pytest.raises(Exception, match="lock timeout"):
            connection.execute(text(f"create index concurrently {indexes[0].name} on runqueue.agent_runs (id)"))
    statements = []
    event.listen(engine, "before_cursor_execute", lambda c, cur, sql, *rest: statements.append(sql.strip()))
    migrate.upgrade(engine, indexes=indexes)
    drops = [x for x in statements if x.startswith(("DROP", "CREATE"))]
    assert [x.split(" IF EXISTS")[0].split(" agent")[0] for x in drops] == [
        "DROP INDEX CONCURRENTLY", "CREATE INDEX CONCURRENTLY"]  # fmt: skip


def test_the_timeout_of_a_role_is_not_that_of_a_migration(engine, blank_url):
    with autocommit(blank_url) as connection:
        connection.execute(text("alter database " + engine.url.database + " set statement_timeout = '7s'"))
    show = text("select current_setting('statement_timeout')")
    assert patiently(engine, "s", lambda c: c.execute(show).scalar_one(), wait=1, lock_timeout=1) == "0"


def test_a_role_that_may_make_no_schema_migrates_one_that_is_there(engine, blank_url):
    with autocommit(blank_url) as connection:
        role = f"role_{engine.url.database}"
        connection.execute(text(f"create role {role} login"))
        try:
            connection.execute(text(f"create schema theirs authorization {role}"))
            theirs = create_engine(engine.url.set(username=role), poolclass=NullPool)
            assert migrate.upgrade(theirs, schema="theirs") == SCHEMA_VERSION
        finally:
            connection.execute(text(f"drop owned by {role}"))
            connection.execute(text(f"drop role {role}"))
