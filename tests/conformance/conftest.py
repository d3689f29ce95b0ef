"""Each test here runs four times: under each claim policy, on the sync and on the async queue.

They share one database and its engines, emptied after each test: nothing here changes more than rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from conformance.driver import Facts, Fleet
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from support.databases import at_rest, empty, new_database
from support.tools import autocommit

from runqueue import Settings
from runqueue.testing import audit


@dataclass(frozen=True)
class Shared:
    """What all tests of a process use, one after the other."""

    url: str
    engine: Engine
    async_engine: AsyncEngine
    runner: asyncio.Runner


@pytest.fixture(scope="session")
def shared(server_url: str, template: str) -> Iterator[Shared]:
    """Made once: the statements stay compiled, and the connections open."""
    with new_database(server_url, template) as url, asyncio.Runner() as runner:
        engine, async_engine = create_engine(url), create_async_engine(url)
        yield Shared(url, engine, async_engine, runner)
        runner.run(async_engine.dispose())
        engine.dispose()


@pytest.fixture
def url(shared: Shared) -> Iterator[str]:
    """The database, in which the invariants must hold after the test."""
    yield shared.url
    at_rest(shared.url)
    with autocommit(shared.url) as connection:
        audit.check(connection)
    empty(shared.url)


@pytest.fixture
def engine(shared: Shared, url: str) -> Iterator[Engine]:
    """The application's engine."""
    yield shared.engine
    held = shared.engine.pool.checkedout()  # type: ignore[attr-defined]
    assert held == 0, f"{held} connections were not given back to the pool"


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    """Which of the two queues."""
    return str(request.param)


@pytest.fixture
def settings() -> Settings:
    """Leases that outlive any test: what expires here is made to, by the database's clock."""
    return Settings(lease=60, heartbeat=20, retry_base=0, watch_interval=0.02)


@pytest.fixture
def fleet(engine: Engine, shared: Shared, face: str, settings: Settings) -> Iterator[Fleet]:
    """Makes further queues on the same database."""
    fleet = Fleet(engine, shared.async_engine if face == "async" else None, shared.runner, settings)
    yield fleet
    fleet.close()


@pytest.fixture
def q(fleet: Fleet, policy: str) -> Any:
    """The queue under test; call it as a sync one."""
    return fleet(policy)


@pytest.fixture
def facts(engine: Engine) -> Facts:
    """What is really stored."""
    return Facts(engine)
