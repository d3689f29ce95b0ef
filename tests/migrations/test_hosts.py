"""Living in an application's database: beside its alembic, inside its alembic, and beside another install."""

from __future__ import annotations

import textwrap

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine, inspect, text
from support.tools import autocommit

from runqueue import AsyncRunQueue, RunQueue, RunStatus, SchemaOutdated, Settings, Worker
from runqueue.errors import RunqueueError
from runqueue.schema import migrate
from runqueue.schema.tables import SCHEMA_VERSION

ENV = """
    from alembic import context
    from sqlalchemy import create_engine, pool

    url = context.config.get_main_option("sqlalchemy.url")
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
"""
REVISION = """
    import sqlalchemy as sa
    from alembic import op

    revision, down_revision, branch_labels, depends_on = "host1", None, None, None

    def upgrade():
        op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))
        {more}

    def downgrade():
        op.drop_table("orders")
"""


@pytest.fixture
def engine(blank_url):
    return create_engine(blank_url, poolclass=NullPool)


@pytest.fixture
def host(tmp_path, blank_url):
    """An application's alembic; `host(more)` has a revision that also does `more`."""

    def make(more="pass", locations=""):
        (tmp_path / "versions").mkdir()
        (tmp_path / "env.py").write_text(textwrap.dedent(ENV))
        (tmp_path / "versions" / "host1.py").write_text(textwrap.dedent(REVISION).format(more=more))
        config = Config()
        config.set_main_option("script_location", str(tmp_path))
        config.set_main_option("path_separator", "space")
        config.set_main_option("version_locations", f"{tmp_path}/versions {locations}")
        config.set_main_option("sqlalchemy.url", blank_url.replace("%", "%%"))
        config.attributes["url"] = blank_url
        return config

    return make


def test_beside_a_host_that_migrates_itself(engine, host):
    config = host()
    migrate.upgrade(engine)
    command.upgrade(config, "head")
    migrate.upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(text("select version_num from alembic_version")).scalars().all() == ["host1"]
    command.downgrade(config, "base")
    assert migrate.current(engine) == SCHEMA_VERSION
    migrate.downgrade(engine)
    assert migrate.current(engine) is None
    assert inspect(engine).get_table_names() == ["alembic_version"]


def test_upgrade_inside_a_migration_is_refused_with_what_to_do_instead(engine, host):
    config = host(
        "from sqlalchemy import create_engine; from runqueue.schema import migrate; "
        "migrate.upgrade(create_engine(op.get_context().config.attributes['url']))"
    )
    with pytest.raises(RunqueueError, match="version_locations"):
        command.upgrade(config, "head")
    assert inspect(engine).get_table_names() == []  # the host's migration was rolled back, and alembic works on
    assert migrate.upgrade(engine) == SCHEMA_VERSION


def test_inside_the_lineage_of_a_host(engine, host):
    config = host(locations="runqueue_migrations:versions")
    command.upgrade(config, "heads")
    assert migrate.current(engine) == SCHEMA_VERSION
    RunQueue(engine).check()
    with engine.connect() as connection:
        found = connection.execute(text("select version_num from alembic_version")).scalars().all()
    assert sorted(found) == ["host1", "rq0002"]
    assert migrate.upgrade(engine) == SCHEMA_VERSION, "there is nothing to do"
    with engine.begin() as connection:
        connection.execute(text("comment on table runqueue.agent_runs is 'runqueue schema 0'"))
    with pytest.raises(RunqueueError, match="the application's own migrations"):
        migrate.upgrade(engine)


def test_autogenerate_of_a_host_leaves_us_alone_and_sees_its_own_drops(engine):
    migrate.upgrade(engine)
    own = MetaData()
    Table("orders", own, Column("id", Integer, primary_key=True))
    Table("stays", own, Column("id", Integer, primary_key=True))
    own.create_all(engine)
    wanted = MetaData()
    Table("stays", wanted, Column("id", Integer, primary_key=True))

    def proposed(**options):
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts=options)
            return [(x[0], getattr(x[1], "fullname", x[1].name)) for x in compare_metadata(context, wanted)]

    assert proposed() == [("remove_table", "orders")]
    assert proposed(include_schemas=True, include_name=migrate.include_name) == [("remove_table", "orders")]
    careless = proposed(include_schemas=True)
    assert ("remove_table", "runqueue.agent_runs") in careless, "without the filter there is something to filter"


def test_include_name_knows_another_schema_by_its_name():
    assert not migrate.include_name("runqueue", "schema", {})
    assert migrate.include_name("other", "schema", {})
    assert migrate.include_name(None, "schema", {})
    assert migrate.include_name("runqueue", "table", {"schema_name": None}), "a host's table may be so called"
    assert not migrate.include_name("jobs", "schema", {}, schema="jobs")


# ----------------------------------------------------------------------------------------------- missing and outdated


def old(engine):
    migrate.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("comment on table runqueue.agent_runs is 'something else'"))


@pytest.mark.parametrize(("prepare", "have"), [(None, "missing"), (old, "at version 0")])
async def test_a_missing_or_old_schema_is_told_at_first_use(engine, blank_url, prepare, have):
    if prepare is not None:
        prepare(engine)
    queue, aqueue = RunQueue(engine), AsyncRunQueue(blank_url)
    says = f"'runqueue' is {have}, this release needs version {SCHEMA_VERSION}: run `runqueue migrate`"
    for call in (
        queue.check,
        queue.stats,
        queue.reap,
        lambda: queue.enqueue("k", tenant_id="t"),
        lambda: queue.claim("w"),
        lambda: queue.pause(),
    ):
        with pytest.raises(SchemaOutdated, match=says):
            call()
    with engine.connect() as connection, pytest.raises(SchemaOutdated, match=says):
        queue.enqueue("k", tenant_id="t", connection=connection)
    for acall in (
        aqueue.check,
        aqueue.stats,
        aqueue.reap,
        lambda: aqueue.enqueue("k", tenant_id="t"),
        lambda: aqueue.claim("w"),
    ):
        with pytest.raises(SchemaOutdated, match=says):
            await acall()
    async with aqueue.engine.connect() as connection:
        with pytest.raises(SchemaOutdated, match=says):
            await aqueue.enqueue("k", tenant_id="t", connection=connection)
    await aqueue.engine.dispose()

    migrate.downgrade(engine) if prepare else None
    migrate.upgrade(engine)
    assert queue.enqueue("k", tenant_id="t").status is RunStatus.PENDING  # no restart is needed


@pytest.mark.parametrize("start", ["drain", "run", "__aenter__"])
async def test_a_worker_does_not_start_on_a_missing_schema(engine, start):
    queue = RunQueue(engine)
    queue.handler("k")(lambda run: None)
    worker = Worker(queue)

    async def begin():
        started = getattr(worker, start)()
        if start == "__aenter__":
            await started

    with pytest.raises(SchemaOutdated, match="run `runqueue migrate`"):
        await begin()


def test_a_newer_schema_is_accepted(engine):
    migrate.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text(f"comment on table runqueue.agent_runs is 'runqueue schema {SCHEMA_VERSION + 1}'"))
    assert RunQueue(engine).enqueue("k", tenant_id="t").status is RunStatus.PENDING


# -------------------------------------------------------------------------------------------------------- two installs


@pytest.fixture
def installs(engine):
    queues = []
    for schema in ("runqueue", "second"):
        migrate.upgrade(engine, schema=schema)
        queues.append(RunQueue(engine, schema=schema, settings=Settings(retry_base=0)))
    return queues


def test_two_installs_do_not_see_each_others_runs(installs):
    one, two = installs
    run = one.enqueue("k", tenant_id="t", idempotency_key="same")
    assert two.claim("w") == []
    assert two.list().runs == ()
    assert two.stats() == []
    assert two.enqueue("k", tenant_id="t", idempotency_key="same").id != run.id
    two.pause()
    [claimed] = one.claim("w")
    assert claimed.run.id == run.id


def test_two_installs_do_not_see_each_others_leases(installs, engine):
    one, two = installs
    one.enqueue("k", tenant_id="t")
    [claimed] = one.claim("w")
    with engine.begin() as connection:
        connection.execute(text("update runqueue.agent_runs set locked_until = now() - interval '1 s'"))
    assert two.reap().pending == 0
    assert [x.lost for x in two.heartbeat([claimed.lease])] == [True]
    assert one.reap().pending == 1


def test_two_installs_do_not_hear_each_other(installs, blank_url):
    one, two = installs
    with autocommit(blank_url) as connection:
        raw = connection.connection.driver_connection
        raw.execute(f"listen {two.core.ctx.channel}")
        one.enqueue("k", tenant_id="t")
        assert list(raw.notifies(timeout=0.3)) == []
        two.enqueue("k", tenant_id="t")
        assert [x.channel for x in raw.notifies(timeout=5, stop_after=1)] == [two.core.ctx.channel]


def test_two_installs_have_versions_of_their_own(installs, engine):
    one, two = installs
    migrate.downgrade(engine, schema="second")
    assert migrate.current(engine, schema="second") is None
    assert migrate.current(engine) == SCHEMA_VERSION
    one.enqueue("k", tenant_id="t")
    with pytest.raises(SchemaOutdated, match="'second' is missing"):
        RunQueue(engine, schema="second").check()
    assert two.core is not one.core
