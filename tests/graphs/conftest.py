"""Databases that have the tables of graph state too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine
from support.databases import new_database
from support.effects import Effects

from runqueue import AsyncRunQueue, RunQueue, Settings
from runqueue.schema import migrate
from runqueue_plugins.langgraph.tables import GraphTables, graph_tables


@pytest.fixture(scope="session")
def template(server_url: str, template: str) -> Iterator[str]:
    """The template of all tests, with the tables of graph state."""
    with new_database(server_url, template) as url:
        engine = create_engine(url)
        migrate.upgrade(engine, migrations=["runqueue_migrations:langgraph"])
        engine.dispose()
        yield str(engine.url.database)


@pytest.fixture
def t() -> GraphTables:
    """The tables."""
    return graph_tables("runqueue")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Calm ones: no lease may be lost here because the machine is busy, only because a test takes it."""
    return dataclasses.replace(settings, lease=30, heartbeat=3)


@pytest.fixture
def queue(engine: Engine, settings: Settings) -> RunQueue:
    """A queue; nothing here depends on the claim policy."""
    return RunQueue(engine, settings=settings)


@pytest.fixture
def aqueue(async_engine: AsyncEngine, settings: Settings) -> AsyncRunQueue:
    """An async queue."""
    return AsyncRunQueue(async_engine, settings=settings)


@pytest.fixture
def fx(url: str) -> Effects:
    """What the nodes of graphs really did."""
    effects = Effects(url)
    effects.create()
    return effects
