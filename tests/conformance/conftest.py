"""Each test here runs four times: under each claim policy, on the sync and on the async queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conformance.driver import Facts, Fleet
from sqlalchemy import Engine

from runqueue import Settings


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    """Which of the two queues."""
    return str(request.param)


@pytest.fixture
def settings() -> Settings:
    """Leases that outlive any test: what expires here is made to, by the database's clock."""
    return Settings(lease=60, heartbeat=20, retry_base=0, watch_interval=0.02)


@pytest.fixture
def fleet(engine: Engine, face: str, settings: Settings) -> Iterator[Fleet]:
    """Makes further queues on the same database."""
    fleet = Fleet(engine, face, settings)
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
