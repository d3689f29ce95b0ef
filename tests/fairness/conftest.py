"""Queues that use the bundled tenant policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from runqueue import RunQueue, Settings
from runqueue.operations import walk


@pytest.fixture(autouse=True)
def turns_are_looked_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim sees the tenants as they are: what is changed counts at once, not after a moment."""
    monkeypatch.setattr(walk, "CURRENT", 0.0)


@pytest.fixture
def make(engine: Engine, policy: str) -> Callable[..., RunQueue]:
    """Another process's queue on the same install."""
    settings = Settings(retry_base=0, watch_interval=0.05)

    def make(*plugins: str | object, **options: Any) -> RunQueue:
        return RunQueue(
            engine, claim=policy, plugins=plugins or ["fairness"], plugin_options=options, settings=settings
        )

    return make


@pytest.fixture
def fair(make: Callable[..., RunQueue]) -> RunQueue:
    """A queue that is fair to tenants."""
    return make()
