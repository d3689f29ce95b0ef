"""Databases at volume, each with statistics of another age. Loaded once; every plan is undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from sqlalchemy import Connection, NullPool, create_engine, text
from support.tools import autocommit, with_database

from runqueue.policies import Takeover
from runqueue.schema import migrate
from runqueue.schema.tables import tables

KINDS = [f"kind-{n}" for n in range(5)]

TARGET = """
insert into runqueue.agent_runs (id, tenant_id, kind, status, priority, attempts, fencing_token, settled_token,
                                 available_at, checkpoint_seq, locked_by, locked_until, finished_at, created_at,
                                 updated_at)
select ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'tenant-' || n % 7, 'kind-' || n / 50 % 5,
       status, n / 250 % 3, (status <> 'pending')::int, (status <> 'pending')::int, (status = 'done')::int,
       now() - interval '1 hour' + n * interval '1 ms', 1,
       case when status = 'leased' then 'worker' end,
       case when status = 'leased' then now() + interval '1 m' * (case when n % 100 = 97 then -1 else 1000 end) end,
       case when status = 'done' then now() end, now() - interval '1 hour', now() - interval '1 hour'
from (select n, case when n % 50 in (47, 48) then 'leased' when n % 50 >= {pending_from} then 'pending' else 'done' end
             as status
      from generate_series(1, 50000) n) x
"""
"""Runs of five kinds and three priorities: 2,000 leased, 500 of those expired, and the others pending or done."""

CROWD = """
insert into runqueue.agent_runs (id, tenant_id, queue, kind, priority, available_at)
select ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, 'crowd',
       case when n % 3 = 0 then 'another' else 'default' end,
       case when n % 3 = 1 then 'another' else 'kind-' || n % 5 end,
       case when n % 3 = 2 then n % 4 else 9 end,
       case when n % 3 = 2 then now() + interval '1 day' else now() - interval '1 day' end
from generate_series(1, 300000) n
"""
"""In front of every due run: 100,000 of another queue, of another kind, and of later, some of a higher priority."""

CHECKPOINTS = """
insert into runqueue.agent_run_checkpoints (run_id, seq, fencing_token, state_json)
select id, 1, 1, '{"turn": 1}' from runqueue.agent_runs where tenant_id <> 'crowd'
"""

BACKLOG, DRAINED = TARGET.format(pending_from=0), TARGET.format(pending_from=45)
ALL_PENDING = """
insert into runqueue.agent_runs (id, tenant_id, kind) select gen_random_uuid(), 'tenant', 'kind-' || n % 5
from generate_series(1, 50000) n
"""
ANALYZE = "analyze runqueue.agent_runs, runqueue.agent_run_checkpoints"
EMPTY = "truncate runqueue.agent_runs, runqueue.agent_run_checkpoints"
"""Leaves the statistics as they are."""
FORGET = """
set allow_system_table_mods = on;
delete from pg_statistic where starelid in (select oid from pg_class where relnamespace = 'runqueue'::regnamespace);
update pg_class set reltuples = -1, relpages = 0 where relnamespace = 'runqueue'::regnamespace and relkind = 'r'
"""

WORLDS = {
    "drained, fresh": [DRAINED, CHECKPOINTS, ANALYZE],
    "drained, stale": [ALL_PENDING, ANALYZE, EMPTY, DRAINED, CHECKPOINTS],
    "drained, analyzed empty": [ANALYZE, DRAINED, CHECKPOINTS],
    "drained, missing": [DRAINED, CHECKPOINTS],
    "crowded, stale": [],
    "crowded, fresh": [ANALYZE],
    "crowded, missing": [FORGET],
}
"""What is done to an empty database, or to one with the crowd whose statistics are from before."""


FAST = {
    "test_plans": ("drained, fresh", "drained, missing"),
    "test_plugin_plans": ("drained, stale",),
}
"""The worlds in which plans are looked at in the fast suite too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        worlds = FAST.get(item.path.stem)
        if worlds is not None and item.callspec.params["world"] not in worlds:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def empty(server_url: str) -> Iterator[str]:
    """The name of a migrated database in which nothing is analyzed unasked."""
    with _database(server_url, "template0") as name:
        engine = create_engine(with_database(server_url, name), poolclass=NullPool)
        migrate.upgrade(engine, indexes=tuple(Takeover().indexes(tables("runqueue"))))
        with engine.begin() as connection:
            for table in ("agent_runs", "agent_run_checkpoints"):
                connection.execute(text(f"alter table runqueue.{table} set (autovacuum_enabled = off)"))
        yield name


@pytest.fixture(scope="package")
def crowded(server_url: str, empty: str) -> Iterator[str]:
    """The name of a database with a backlog, and the crowd in front of it; analyzed before either came."""
    with _database(server_url, empty) as name:
        with autocommit(with_database(server_url, name)) as connection:
            for statement in (DRAINED, ANALYZE, EMPTY):
                connection.execute(text(statement))
            find = text("select indexdef from pg_indexes where indexname = 'agent_runs_claim_idx'")
            index = connection.execute(find).scalar_one()
            connection.execute(text("drop index runqueue.agent_runs_claim_idx"))  # faster than to fill it row by row
            for statement in (BACKLOG, CROWD, index, CHECKPOINTS):
                connection.execute(text(statement))
        yield name


@pytest.fixture(scope="package", params=WORLDS)
def world(request: pytest.FixtureRequest, server_url: str) -> Iterator[Connection]:
    """A connection to a loaded database."""
    template = request.getfixturevalue("crowded" if "crowded" in request.param else "empty")
    with _database(server_url, template) as name:
        url = with_database(server_url, name)
        with autocommit(url) as connection:
            for statement in WORLDS[request.param]:
                connection.execute(text(statement))
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            yield connection


@contextmanager
def _database(server_url: str, template: str) -> Iterator[str]:
    name = f"runqueue_plans_{uuid4().hex[:16]}"
    with autocommit(server_url) as connection:
        fast = "strategy file_copy" if connection.dialect.server_version_info >= (15,) else ""
        connection.exec_driver_sql(f'create database "{name}" template "{template}" {fast}')
    try:
        yield name
    finally:
        with autocommit(server_url) as connection:
            connection.exec_driver_sql(f'drop database if exists "{name}" with (force)')
