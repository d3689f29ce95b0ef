"""What a migration is said to do: which locks, which revisions, and that looking changes nothing."""

from __future__ import annotations

import os
import subprocess

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.schema import CreateSchema
from support.catalog import contents
from support.cli import caller
from support.postgres import programs

from runqueue import InvalidRun
from runqueue.policies import Takeover
from runqueue.schema import migrate, revisions
from runqueue.schema.locks import Lock, created, locks
from runqueue.schema.tables import SCHEMA_VERSION, tables

LANGGRAPH = "runqueue_migrations:langgraph"
HELD = text(
    "select relation, mode from pg_locks "
    "where pid = pg_backend_pid() and locktype = 'relation' and mode <> 'AccessShareLock'"
)
TABLES = text(
    "select oid, relname from pg_class where relkind in ('r', 'p') and relnamespace = to_regnamespace(:schema)"
)
WEAK_TO_STRONG = [
    "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock",
    "ExclusiveLock", "AccessExclusiveLock",
]  # fmt: skip


@pytest.fixture
def engine(blank_url):
    return create_engine(blank_url, poolclass=NullPool)


def taken(connection, sql, schema="runqueue"):
    """Run a statement, and give the strongest lock on each table that was there before."""
    before = {x.oid: x.relname for x in connection.execute(TABLES, {"schema": schema})}
    connection.exec_driver_sql(sql)
    found = {}
    for table, mode in connection.execute(HELD):
        if (name := before.get(table)) is not None:
            found[name] = max(found.get(name, mode), mode, key=WEAK_TO_STRONG.index)
    return found


def said(sql):
    return {x.table.rpartition(".")[2]: f"{x.mode.title().replace(' ', '')}Lock" for x in locks(sql)}


@pytest.mark.parametrize("location", [None, LANGGRAPH])
def test_every_statement_takes_the_locks_that_the_plan_says_or_weaker_ones(engine, location):
    branch = None if location is None else revisions.read_branches([location])[0]
    if branch is not None:
        migrate.upgrade(engine)
    seen = 0
    with engine.begin() as connection:
        connection.execute(CreateSchema("runqueue", if_not_exists=True))
    for texts in revisions.by_revision("runqueue", branch).values():
        for sql in texts:
            if sql.strip() in ("BEGIN;", "COMMIT;") or "runqueue_version" in sql:
                continue
            with engine.begin() as connection:
                for table, mode in taken(connection, sql).items():
                    claimed = said(sql).get(table) or said(sql).get("?")
                    assert claimed is not None, f"{sql}: {mode} on {table} is not said"
                    assert WEAK_TO_STRONG.index(mode) <= WEAK_TO_STRONG.index(claimed), sql
            seen += 1
    assert seen > 3


STATEMENTS = {
    "alter table s.t add column b int": {"t": "AccessExclusiveLock"},
    "alter table s.t alter column a set default 1": {"t": "AccessExclusiveLock"},
    "alter table s.t alter column a set statistics 100": {"t": "ShareUpdateExclusiveLock"},
    "alter table s.t set (fillfactor = 70)": {"t": "ShareUpdateExclusiveLock"},
    "alter table only s.t add constraint c check (a > 0) not valid": {"t": "AccessExclusiveLock"},
    "alter table s.t validate constraint old": {"t": "ShareUpdateExclusiveLock"},
    "alter table s.u add foreign key (a) references s.t (a)": {
        "t": "ShareRowExclusiveLock", "u": "ShareRowExclusiveLock"},
    "alter table s.p attach partition s.q for values from (0) to (9)": {
        "p": "ShareUpdateExclusiveLock", "q": "AccessExclusiveLock"},
    "create table s.r partition of s.p for values from (10) to (19)": {"p": "AccessExclusiveLock"},
    "create table s.x (a int references s.t)": {"t": "ShareRowExclusiveLock"},
    "create table s.x (a int)": {},
    'create index on s."t" (a)': {"t": "ShareLock"},
    "comment on table s.t is 'x'": {"t": "ShareUpdateExclusiveLock"},
    "comment on column s.t.a is 'x'": {"t": "ShareUpdateExclusiveLock"},
    "insert into s.t values (1)": {"t": "RowExclusiveLock"},
    "delete from only s.t": {"t": "RowExclusiveLock"},
    "drop table s.u": {"u": "AccessExclusiveLock"},
    "lock table s.t in share mode": {"t": "ShareLock"},
    "create view s.v as select 1": {},
}  # fmt: skip


@pytest.mark.parametrize("sql", STATEMENTS)
def test_the_locks_of_a_statement_are_those_that_postgresql_takes(engine, sql):
    with engine.connect() as connection:
        connection.exec_driver_sql(
            "create schema s; create table s.t (a int primary key, constraint old check (a is not null)); "
            "create table s.u (a int); create table s.q (a int); create table s.p (a int) partition by range (a)"
        )
        connection.commit()
        assert taken(connection, sql, "s") == said(sql) == STATEMENTS[sql]


def test_what_is_not_known_is_taken_for_the_worst():
    assert locks("do $$ begin perform 1; end $$") == (Lock("?", "ACCESS EXCLUSIVE"),)
    assert locks("create index concurrently i on s.t (a)") == (Lock("s.t", "SHARE UPDATE EXCLUSIVE"),)
    assert [Lock("t", x).stops for x in ("ACCESS EXCLUSIVE", "SHARE", "SHARE UPDATE EXCLUSIVE")] == [
        "reads and writes", "writes", "nothing but schema changes"]  # fmt: skip
    assert created('CREATE TABLE "s".t (a int)') == "s.t"


# ------------------------------------------------------------------------------------------------------------ the plan


def first(engine):
    """Migrate, and go back to the first revision."""
    migrate.upgrade(engine)
    migrate.downgrade(engine, revisions.line()[0].revision)


def test_a_plan_tells_the_revisions_that_are_left_and_changes_nothing(engine):
    index = tuple(Takeover().indexes(tables("runqueue")))
    with engine.connect() as connection:
        whole = [x.name for x in migrate.plan(connection, indexes=index, migrations=[LANGGRAPH])]
        assert not connection.dialect.has_schema(connection, "runqueue")
    line = [x.revision for x in revisions.line()]
    assert whole == [*line, "rql0001", "agent_runs_expiry_idx"]
    first(engine)
    with engine.connect() as connection:
        before = contents(connection, "runqueue")
        steps = migrate.plan(connection)
        assert contents(connection, "runqueue") == before
    assert [x.name for x in steps] == line[1:]
    assert {x.applies for x in steps} <= {"before", "after"}
    added = [x for x in steps[0].statements if "ADD COLUMN leased_at" in x.sql]
    assert [x.locks for x in added[:1]] == [(Lock("runqueue.agent_runs", "ACCESS EXCLUSIVE"),)]
    made = [x for x in steps[0].statements if "CREATE TABLE" in x.sql]
    assert all(x.locks == () for x in made)
    migrate.upgrade(engine, indexes=index, migrations=[LANGGRAPH])
    with engine.connect() as connection:
        assert migrate.plan(connection, indexes=index, migrations=[LANGGRAPH]) == []


@pytest.fixture
def call(monkeypatch, capsys, tmp_path, blank_url):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", blank_url)
    return caller(monkeypatch, capsys)


def test_the_command_shows_the_plan(call, engine):
    assert "CREATE TABLE runqueue.agent_runs" in call("migrate", "--plan").out
    assert migrate.current(engine) is None
    first(engine)
    shown = call("migrate", "--plan", "--claim", "takeover")
    assert shown.code == 0
    assert "before the new code" in shown.out
    assert "    ACCESS EXCLUSIVE on runqueue.agent_runs: stops reads and writes" in shown.out.splitlines()
    assert (
        "    SHARE UPDATE EXCLUSIVE on runqueue.agent_runs: stops nothing but schema changes" in shown.out.splitlines()
    )
    steps = call("migrate", "--plan", "--json", "--claim", "takeover").lines
    assert [x["name"] for x in steps] == [*(x.revision for x in revisions.line()[1:]), "agent_runs_expiry_idx"]
    assert steps[0]["statements"][0]["locks"][0]["stops"] == "reads and writes"
    assert migrate.current(engine) == 1
    assert call("migrate", "--claim", "takeover").code == 0
    assert call("migrate", "--plan", "--claim", "takeover").out == "schema 'runqueue' is up to date\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--since", "rq0001"], "--sql"), (["--json"], "--plan"), (["--plan", "--check"], "exclude"),
     (["--sql", "--before"], "exclude"), (["--sql", "--since", "nothing"], "rq0001")],
)  # fmt: skip
def test_options_that_do_not_go_together_are_wrong_usage(call, words, says):
    result = call("migrate", *words)
    assert (result.code, result.out) == (2, "")
    assert says in result.err


# ---------------------------------------------------------------------------------------------------- through psql


def psql(url, script):
    """Run a script as a database administrator does."""
    at = make_url(url)
    variables = {"PGHOST": at.query.get("host") or at.host, "PGPORT": at.query.get("port") or at.port or 5432,
                 "PGUSER": at.username, "PGDATABASE": at.database, "PGPASSWORD": at.password or ""}  # fmt: skip
    done = subprocess.run(
        ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-"], input=script, capture_output=True, text=True,
        env=os.environ | {"PATH": f"{programs()}:{os.environ['PATH']}"} | {x: str(y) for x, y in variables.items()},
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("begin", ["nothing", "the first revision"])
def test_the_printed_sql_runs_through_psql_and_ends_in_the_same(call, engine, blank_url, begin):
    words = ["--claim", "takeover", "--schema", "printed"]
    if begin == "nothing":
        words += ["--plugin", "langgraph", "--plugin", "fairness"]
        psql(blank_url, call("migrate", "--sql", *words).out)
    else:
        bottom = revisions.line()[0].revision
        migrate.upgrade(engine, schema="printed")
        migrate.downgrade(engine, bottom, schema="printed")
        psql(blank_url, call("migrate", "--sql", "--since", bottom, *words).out)
    assert call("migrate", "--check", *words).code == 0
    words[words.index("printed")] = "runqueue"
    assert call("migrate", *words).code == 0
    with engine.connect() as connection:
        assert contents(connection, "printed") == contents(connection, "runqueue")
    assert migrate.current(engine, schema="printed") == SCHEMA_VERSION


def test_a_revision_that_is_not_there_is_refused():
    with pytest.raises(InvalidRun, match="since"):
        migrate.sql(since="rq9999")
