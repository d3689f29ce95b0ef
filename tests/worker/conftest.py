"""Real workers: some in this process, some in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from support.effects import Effects
from support.fleet import Fleet

from runqueue import RunQueue, Settings


@pytest.fixture
def fx(url: str) -> Effects:
    """What handlers really did."""
    effects = Effects(url)
    effects.create()
    return effects


@pytest.fixture
def plain(engine: Engine, settings: Settings) -> RunQueue:
    """A queue under the default policy, for what does not depend on the policy."""
    return RunQueue(engine, settings=settings)


@pytest.fixture
def fleet(url: str, fx: Effects, tmp_path: Path) -> Iterator[Fleet]:
    """Worker processes under the default policy."""
    fleet = Fleet(url, tmp_path)
    yield fleet
    fleet.end()


@pytest.fixture
def any_fleet(url: str, fx: Effects, tmp_path: Path, policy: str) -> Iterator[Fleet]:
    """Worker processes, under each policy."""
    fleet = Fleet(url, tmp_path, policy)
    yield fleet
    fleet.end()
