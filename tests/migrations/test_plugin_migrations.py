"""Migrations that plugins bring: with the library's, without the plugin, there and back, printed, and refused."""

from __future__ import annotations

import logging
import sys
import textwrap

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Column, Index, Integer, MetaData, NullPool, Table, create_engine, text
from support.catalog import contents
from support.cli import caller
from support.tools import autocommit

from runqueue import PluginError, PluginSchema, RunQueue, hookimpl
from runqueue.errors import RunqueueError
from runqueue.schema import migrate
from runqueue.schema.indexes import index_state
from runqueue.schema.tables import SCHEMA_VERSION

REVISION = """
    import sqlalchemy as sa
    from alembic import op

    revision, down_revision, branch_labels, depends_on = {revision!r}, {down!r}, {label!r}, {depends!r}

    def upgrade():
        schema = op.get_context().opts["runqueue_schema"]
        op.create_table({table!r}, sa.Column("id", sa.Integer, primary_key=True), schema=schema)

    def downgrade():
        op.drop_table({table!r}, schema=op.get_context().opts["runqueue_schema"])
"""
NEWEST = "rq0002"


@pytest.fixture
def engine(blank_url):
    return create_engine(blank_url, poolclass=NullPool)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes packages of revisions, a table each; `package(name, n)` has the first n of them."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name, count=1, *, label="", depends="rq0001"):
        folder = tmp_path / name / "versions"
        folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
        for n in range(1, count + 1):
            words = {
                "revision": f"{name}{n}",
                "down": f"{name}{n - 1}" if n > 1 else None,
                "label": None if n > 1 else (label or name),
                "depends": depends if n == 1 else None,
                "table": f"of_{name}_{n}",
            }
            (folder / f"{name}{n}.py").write_text(textwrap.dedent(REVISION).format(**words))
        return f"{name}:versions"

    yield make
    for name in [x for x in sys.modules if x.partition(".")[0] in {p.name for p in tmp_path.iterdir()}]:
        del sys.modules[name]


def tables_of(engine, schema="runqueue"):
    with engine.connect() as connection:
        names = text("select tablename from pg_tables where schemaname = :schema and tablename ~ '^of_' order by 1")
        return list(connection.execute(names, {"schema": schema}).scalars())


def recorded(engine, label, schema="runqueue"):
    with engine.connect() as connection:
        return list(connection.execute(text(f"select version_num from {schema}.runqueue_version_{label}")).scalars())


@pytest.mark.parametrize("depends", [None, "rq0001", NEWEST])
def test_a_plugins_revisions_run_once_and_then_the_new_ones(engine, package, depends):
    one = package("first", depends=depends)
    for _ in range(2):
        assert migrate.upgrade(engine, migrations=[one]) == SCHEMA_VERSION
        assert (tables_of(engine), recorded(engine, "first")) == (["of_first_1"], ["first1"])
    package("first", 3, depends=depends)
    assert migrate.upgrade(engine, migrations=[one]) == SCHEMA_VERSION
    assert tables_of(engine) == ["of_first_1", "of_first_2", "of_first_3"]
    assert recorded(engine, "first") == ["first3"]
    with engine.connect() as connection:
        assert connection.execute(text("select version_num from runqueue.runqueue_version")).scalars().all() == [NEWEST]


@pytest.mark.parametrize("depends", [None, "rq0001", NEWEST])
def test_without_the_plugin_the_library_migrates_on(engine, package, depends):
    one = package("first", depends=depends)
    migrate.upgrade(engine, migrations=[one])
    with engine.connect() as connection:
        before = contents(connection, "runqueue")
    assert migrate.upgrade(engine) == SCHEMA_VERSION
    migrate.downgrade(engine, "rq0001")
    assert migrate.current(engine) == 1
    assert migrate.upgrade(engine) == SCHEMA_VERSION
    assert migrate.upgrade(engine, migrations=[one]) == SCHEMA_VERSION
    with engine.connect() as connection:
        assert contents(connection, "runqueue") == before


def test_plugins_are_independent_of_each_other_and_installs_too(engine, package):
    one, two = package("first"), package("second", 2)
    migrate.upgrade(engine, migrations=[one])
    migrate.upgrade(engine, migrations=[two])
    migrate.upgrade(engine, schema="elsewhere", migrations=[two, one])
    assert tables_of(engine) == tables_of(engine, "elsewhere") == ["of_first_1", "of_second_1", "of_second_2"]
    migrate.downgrade(engine, NEWEST, migrations=[two])
    assert tables_of(engine) == ["of_first_1"]
    assert len(tables_of(engine, "elsewhere")) == 3


@pytest.mark.parametrize("depends", [None, "rq0001", NEWEST])
def test_there_and_back_leaves_nothing(engine, package, depends):
    one = package("first", 2, depends=depends)
    migrate.upgrade(engine, migrations=[one])
    with pytest.raises(RunqueueError, match=r"tables of plugins.*: first"):
        migrate.downgrade(engine)
    assert len(tables_of(engine)) == 2, "nothing was undone"
    assert migrate.current(engine) == SCHEMA_VERSION
    migrate.downgrade(engine, migrations=[one])
    with engine.connect() as connection:
        assert contents(connection, "runqueue") == []
    assert migrate.upgrade(engine, migrations=[one]) == SCHEMA_VERSION


@pytest.mark.parametrize("depends", [None, "rq0001", NEWEST])
def test_the_printed_sql_makes_the_same(engine, package, depends):
    locations = [package("first", 2, depends=depends), package("second", depends=depends)]
    with autocommit(engine.url.render_as_string(hide_password=False)) as connection:
        connection.connection.driver_connection.execute(migrate.sql(schema="printed", migrations=locations))
    migrate.upgrade(engine, migrations=locations)
    with engine.connect() as connection:
        assert contents(connection, "printed") == contents(connection, "runqueue")
        assert migrate.missing(connection, schema="printed", migrations=locations) == []
    assert recorded(engine, "first", "printed") == ["first2"]
    migrate.upgrade(engine, schema="printed", migrations=locations)  # and is known to be done


def test_a_revision_that_fails_changes_nothing_of_the_librarys_either(engine, package, tmp_path):
    one = package("first", 2)
    path = tmp_path / "first/versions/first2.py"
    path.write_text(path.read_text().replace("op.create_table(", "raise_now(", 1))
    with pytest.raises(NameError):
        migrate.upgrade(engine, migrations=[one])
    assert tables_of(engine) == []
    assert migrate.current(engine) is None
    with engine.connect() as connection:
        assert contents(connection, "runqueue") == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda make: "no_such_package:versions", "'no_such_package:versions' cannot be read.*no_such_package"),
        (lambda make: make("first", label="No-Label"), "one branch label.*No-Label"),
        (lambda make: make("first", label=("a", "b")), "one branch label.*a, b"),
        (lambda make: make("first", depends="nothing"), "cannot be read.*nothing"),
        (lambda make: make("first", 0), "found are 0 first"),
    ],
)
def test_what_is_no_branch_of_its_own_is_refused_before_any_sql(package, change, says):
    nowhere = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    location = change(package)
    for call in (
        lambda: migrate.upgrade(nowhere, migrations=[location]),
        lambda: migrate.downgrade(nowhere, migrations=[location]),
        lambda: migrate.sql(migrations=[location]),
    ):
        with pytest.raises(PluginError, match=says):
            call()


def test_two_plugins_with_one_label_are_refused(package):
    locations = [package("first", label="same"), package("second", label="same")]
    with pytest.raises(PluginError, match="branch label 'same'"):
        migrate.sql(migrations=locations)


def test_in_a_hosts_lineage_the_host_runs_them(engine, package, tmp_path, blank_url, caplog):
    one = package("first")
    (tmp_path / "host").mkdir()
    (tmp_path / "host/env.py").write_text(
        "from alembic import context\nfrom sqlalchemy import create_engine, pool\n"
        "url = context.config.get_main_option('sqlalchemy.url')\n"
        "with create_engine(url, poolclass=pool.NullPool).connect() as connection:\n"
        "    context.configure(connection=connection, runqueue_schema='runqueue')\n"
        "    with context.begin_transaction():\n        context.run_migrations()\n"
    )
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "host"))
    config.set_main_option("path_separator", "space")
    config.set_main_option("version_locations", f"runqueue_migrations:versions {one}")
    config.set_main_option("sqlalchemy.url", blank_url.replace("%", "%%"))
    command.upgrade(config, "heads")
    assert tables_of(engine) == ["of_first_1"]
    with caplog.at_level(logging.WARNING, "runqueue"):
        assert migrate.upgrade(engine, migrations=[one]) == SCHEMA_VERSION
    assert "first:versions must be in its version_locations too" in caplog.text
    assert tables_of(engine) == ["of_first_1"]


# ---------------------------------------------------------------------------------------------------- the command line


class Brings:
    """A plugin with a table and an index."""

    name = "brings"

    def __init__(self, location):
        self.location = location

    @hookimpl
    def runqueue_schema(self, schema):
        runs = Table("agent_runs", MetaData(schema=schema), Column("priority", Integer))
        return PluginSchema(indexes=(Index("of_brings_idx", runs.c.priority),), migrations=self.location)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path, blank_url, package):
    from support.plugins import installed_plugins

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", blank_url)
    installed_plugins(monkeypatch, brings=Brings(package("first")))
    return caller(monkeypatch, capsys)


def test_migrate_makes_what_the_named_plugins_need(call, engine):
    assert call("migrate").code == 0
    assert call("migrate", "--check").code == 0
    assert tables_of(engine) == []
    lacking = call("migrate", "--check", "--plugin", "brings")
    assert (lacking.code, lacking.out) == (5, "")
    assert "'first:versions'" in lacking.err
    assert "of_brings_idx" in lacking.err
    assert call("migrate", "--plugin", "brings").code == 0
    assert call("migrate", "--check", "--plugin", "brings").code == 0
    assert tables_of(engine) == ["of_first_1"]
    with engine.connect() as connection:
        assert index_state(connection, "runqueue", "of_brings_idx") is True


def test_migrate_check_states_no_rules(call, blank_url):
    assert call("migrate").code == call("migrate", "--check").code == 0
    queue = RunQueue(blank_url)
    queue.check()
    assert queue.rules() == {}, "who only looks may know nothing of the plugins of those who claim"
    queue.claim("w")
    assert queue.rules() == {"claim_order": "priority", "tenant_policy": ""}
    queue.close()


def test_migrate_prints_the_sql_of_the_named_plugins(call):
    assert "of_first_1" not in call("migrate", "--sql").out
    printed = call("migrate", "--sql", "--plugin", "brings").out
    assert "CREATE TABLE runqueue.of_first_1" in printed
    assert "CONCURRENTLY of_brings_idx" in printed


def test_migrations_that_cannot_be_used_are_a_wrong_configuration(call, tmp_path):
    (tmp_path / "first/versions/first1.py").write_text("1 / 0")
    result = call("migrate", "--plugin", "brings")
    assert (result.code, result.out) == (2, "")
    assert "--plugin: the migrations 'first:versions' cannot be read: ZeroDivisionError" in result.err
