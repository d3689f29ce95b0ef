"""Upgrading: from nothing, by many at once, there and back, and what the result is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.schema import CreateSchema
from support.catalog import contents
from support.tools import autocommit, eventually

from runqueue import RunQueue
from runqueue.errors import RunqueueError
from runqueue.policies import Takeover
from runqueue.schema import migrate, revisions
from runqueue.schema.indexes import index_state
from runqueue.schema.patience import take_turn
from runqueue.schema.tables import RUN_CHECKS, SCHEMA_VERSION, tables

INDEXES = tuple(Takeover().indexes(tables("runqueue")))

UPGRADE = """
import os, sys, traceback
from sqlalchemy import create_engine
from runqueue.policies import Takeover
from runqueue.schema import migrate
from runqueue.schema.tables import tables

def upgrade():
    sys.stdin.readline()
    try:
        done = migrate.upgrade(create_engine(sys.argv[1]), indexes=tuple(Takeover().indexes(tables("runqueue"))))
        os.write(1, f"{done}\\n".encode())  # at once, or the lines of several processes would mix
    except BaseException:
        traceback.print_exc()
        return 1
    sys.stdout.flush()
    return 0

started = []
for _ in range(int(sys.argv[2])):
    if (pid := os.fork()) == 0:
        sys.stdin = os.fdopen(0)
        os._exit(upgrade())
    started.append(pid)
print(*started, flush=True)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started))
"""
"""All begin when standard input is closed."""


@pytest.fixture
def engine(blank_url):
    return create_engine(blank_url, poolclass=NullPool)


@pytest.fixture
def elsewhere(blank_url):
    """Starts processes that upgrade when told to: the one above them, and their ids."""
    above = []

    def start(n):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", UPGRADE, blank_url, str(n)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        above.append(process)
        return process, [int(x) for x in process.stdout.readline().split()]

    yield start
    for process in above:
        process.communicate(timeout=10)


def of_a_single_run(engine):
    migrate.upgrade(engine, schema="single", indexes=tuple(Takeover().indexes(tables("single"))))
    with engine.connect() as connection:
        return contents(connection, "single")


def test_eight_processes_upgrade_an_empty_database_at_once(engine, elsewhere):
    process, started = elsewhere(8)
    assert len(started) == 8
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert out.splitlines() == [str(SCHEMA_VERSION)] * 8
    with engine.connect() as connection:
        assert connection.execute(text("select count(*) from runqueue.runqueue_version")).scalar_one() == 1
        after_eight = contents(connection, "runqueue")
    assert after_eight == of_a_single_run(engine)


def test_an_upgrade_killed_half_way_leaves_nothing_and_can_be_repeated(engine, elsewhere):
    process, [started] = elsewhere(1)
    waits = text(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    with engine.connect() as holder, autocommit(engine.url.render_as_string(hide_password=False)) as observer:
        observer.execute(CreateSchema("runqueue"))
        holder.execute(text("create table runqueue.agent_run_pauses ()"))  # the upgrade waits for what becomes of it
        process.stdin.close()
        process.stdin = None
        eventually(lambda: observer.execute(waits).scalar_one() == 1, what="the upgrade, waiting in mid-run,")
        os.kill(started, signal.SIGKILL)
        process.wait(10)
        holder.rollback()
        eventually(lambda: observer.execute(waits).scalar_one() == 0, what="the end of its session")
        assert contents(observer, "runqueue") == []
    migrate.upgrade(engine, indexes=INDEXES)
    with engine.connect() as connection:
        again = contents(connection, "runqueue")
    assert again == of_a_single_run(engine)


def test_an_upgrade_waits_for_another_only_so_long(engine):
    with engine.connect() as holder, holder.begin():
        take_turn(holder, "runqueue", 1, 1)
        with pytest.raises(RunqueueError, match=r"another process .* 'runqueue' .* 0.2 s"):
            migrate.upgrade(engine, wait=0.2)
    assert migrate.upgrade(engine, wait=0.2) == SCHEMA_VERSION


def test_the_migrations_make_what_the_tables_say(engine):
    migrate.upgrade(engine)
    metadata = tables("runqueue").metadata
    with engine.connect() as connection:
        options = {
            "compare_server_default": True,
            "include_schemas": True,
            "version_table": "runqueue_version",
            "version_table_schema": "runqueue",
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
        migrated = contents(connection, "runqueue")
        connection.execute(CreateSchema("directly"))
        tables("directly").metadata.create_all(connection)
        assert contents(connection, "directly") == migrated  # CHECK constraints and comments too
        connection.rollback()
    assert sum("_check | agent_runs | c" in line for line in migrated) == len(RUN_CHECKS)


def test_a_difference_between_migrations_and_tables_is_seen(engine):
    migrate.upgrade(engine)
    with engine.connect() as connection:
        before = contents(connection, "runqueue")
        for change in (
            "alter table runqueue.agent_runs drop constraint agent_runs_tokens_check",
            "alter table runqueue.agent_runs alter column kind drop not null",
            "alter table runqueue.agent_runs alter column priority set default 1",
            "alter table runqueue.agent_runs reset (fillfactor)",
            "alter table runqueue.agent_runs alter column input_json set storage external",
            "alter table runqueue.agent_runs set (toast.autovacuum_enabled = off)",
            "comment on table runqueue.agent_runs is null",
            "drop index runqueue.agent_runs_claim_idx",
            "create sequence runqueue.another",
        ):
            with connection.begin_nested() as savepoint:
                connection.execute(text(change))
                assert contents(connection, "runqueue") != before, change
                savepoint.rollback()
        assert contents(connection, "runqueue") == before


def test_every_revision_can_be_undone_and_done_again(engine):
    def at(revision, move):
        with engine.begin() as connection:
            connection.execute(CreateSchema("runqueue", if_not_exists=True))
            move(revisions.config("runqueue", connection), revision)
            return contents(connection, "runqueue")

    below, last = [], "base"
    for revision in names():
        there = at(revision, command.upgrade)
        assert there != below
        assert at(last, command.downgrade) == below
        assert at(revision, command.upgrade) == there
        below, last = there, revision
    assert migrate.current(engine) == SCHEMA_VERSION
    migrate.downgrade(engine)
    with engine.connect() as connection:
        assert contents(connection, "runqueue") == []


def test_a_repeated_upgrade_changes_nothing_and_keeps_the_runs(engine):
    migrate.upgrade(engine, indexes=INDEXES)
    run = RunQueue(engine).enqueue("k", tenant_id="t")
    with engine.connect() as connection:
        before = contents(connection, "runqueue")
    assert migrate.upgrade(engine, indexes=INDEXES) == SCHEMA_VERSION
    with engine.connect() as connection:
        assert contents(connection, "runqueue") == before
    assert RunQueue(engine).get(run.id) == run


def test_the_printed_sql_makes_the_same_schema(engine):
    with autocommit(engine.url.render_as_string(hide_password=False)) as connection:
        connection.connection.driver_connection.execute(migrate.sql(schema="printed"))  # as psql -f, in one go
        printed = contents(connection, "printed")
    migrate.upgrade(engine)
    with engine.connect() as connection:
        assert printed == contents(connection, "runqueue")
    assert migrate.current(engine, schema="printed") == SCHEMA_VERSION
    assert migrate.upgrade(engine, schema="printed") == SCHEMA_VERSION  # and is known to be done


def test_an_invalid_index_is_built_again(engine):
    migrate.upgrade(engine)
    [index] = INDEXES
    with engine.connect() as holder, autocommit(engine.url.render_as_string(hide_password=False)) as connection:
        holder.execute(text("lock table runqueue.agent_runs in row exclusive mode"))
        connection.execute(text("set lock_timeout = '100ms'"))
        with pytest.raises(Exception, match="lock timeout"):
            connection.execute(
                text(f"create index concurrently {index.name} on runqueue.agent_runs (queue) where status = 'leased'")
            )
        holder.rollback()
        assert index_state(connection, "runqueue", str(index.name)) is False
        migrate.upgrade(engine, indexes=INDEXES)
        assert index_state(connection, "runqueue", str(index.name)) is True
        assert contents(connection, "runqueue") == of_a_single_run(engine)


@pytest.mark.parametrize(
    "name",
    ["", "Runqueue", "run queue", 'x"; drop table runs; --', "pg_runqueue", "1st", "über", "a" * 42, "a\0", "a.b", "%s",
     "$$", ":name", None, 7],
)  # fmt: skip
def test_an_odd_schema_name_is_refused_before_any_sql(engine, name):
    from runqueue import InvalidRun

    nowhere = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    for call in (
        lambda: migrate.upgrade(nowhere, schema=name),
        lambda: migrate.downgrade(nowhere, schema=name),
        lambda: migrate.current(nowhere, schema=name),
        lambda: migrate.sql(schema=name),
        lambda: RunQueue(nowhere, schema=name),
    ):
        with pytest.raises(InvalidRun, match="schema"):
            call()


def names():
    return [script.revision for script in reversed(list(scripts().walk_revisions()))]


def scripts():
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(revisions.config("runqueue", None))


def test_there_is_one_head_and_one_base():
    assert len(scripts().get_heads()) == 1
    assert len(scripts().get_bases()) == 1


def test_every_revision_says_when_to_deploy_it_and_what_it_locks():
    for script in scripts().walk_revisions():
        words = script.module.__doc__
        assert "Deploy: before" in words or "Deploy: after" in words, script.path
        assert "Locks: " in words, script.path
        assert script.revision.startswith("rq"), "a host's revisions may share the lineage"


def test_revisions_do_not_import_the_live_tables():
    for script in scripts().walk_revisions():
        source = Path(script.path).read_text()
        assert "runqueue.schema" not in source
        assert "from runqueue" not in source
