"""The plugin without LangGraph, and its migration."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, NullPool, create_engine, inspect, text

import runqueue_plugins.langgraph as plugin
from runqueue import PluginSchema, RunQueue
from runqueue.schema import migrate
from runqueue_plugins.langgraph.tables import graph_tables

LOCATION = "runqueue_migrations:langgraph"
WITHOUT = """
import sys
for name in ("langgraph", "langchain_core"):
    sys.modules[name] = None
from runqueue import PluginError, RunQueue
import runqueue_plugins.langgraph as plugin
RunQueue("postgresql://nowhere/x", plugins=["langgraph"])
assert plugin.on_thread("t", 1) == {"$langgraph": {"thread_id": "t", "input": 1}}
for name in ("graph_handler", "sync_graph_handler", "GraphSaver", "AsyncGraphSaver"):
    try:
        getattr(plugin, name)
    except PluginError as error:
        assert 'pip install "runqueue[langgraph]"' in str(error) and name in str(error), error
    else:
        raise AssertionError(name)
"""


def test_without_langgraph_the_plugin_says_how_to_get_it() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_every_public_name_is_there() -> None:
    assert set(plugin.__all__) == set(plugin._LAZY)
    for name in plugin.__all__:
        assert getattr(plugin, name).__doc__, name
    with pytest.raises(AttributeError):
        _ = plugin.nonsense


def test_plugin_brings_its_migrations(engine: Engine) -> None:
    queue = RunQueue(engine, plugins=["langgraph"])
    assert queue.schema == "runqueue"
    assert plugin.runqueue_schema("runqueue") == PluginSchema(migrations=LOCATION)


@pytest.mark.parametrize("schema", ["runqueue", "other_name"])
def test_migration_makes_what_the_statements_expect(blank_url: str, schema: str) -> None:
    engine = create_engine(blank_url, poolclass=NullPool)
    tables = graph_tables(schema).metadata
    names = {table.name for table in tables.sorted_tables}
    mine: Any = {"schema": schema, "migrations": [LOCATION]}
    migrate.upgrade(engine, **mine)
    with engine.connect() as connection:
        options = {"include_schemas": True, "compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(
            connection, opts=options | {"include_object": lambda x, name, kind, *_: kind != "table" or name in names}
        )
        assert compare_metadata(context, tables) == []
        collations = connection.execute(
            text("select count(*) from information_schema.columns where table_schema = :s and collation_name = 'C'"),
            {"s": schema},
        ).scalar_one()
        assert collations == 3
    migrate.downgrade(engine, **mine)
    migrate.upgrade(engine, schema=schema)
    left = set(inspect(engine).get_table_names(schema))
    assert not names & left
    assert "agent_runs" in left
    migrate.upgrade(engine, **mine)
    assert names < set(inspect(engine).get_table_names(schema))
