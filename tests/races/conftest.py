"""Several connections, in an order that the test decides. The operations are those of the async queue too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance.driver import Facts
from races.forced import Gate
from sqlalchemy import Engine, event

from runqueue import Settings


@pytest.fixture
def settings() -> Settings:
    """Leases that outlive any test, and no backoff."""
    return Settings(lease=60, heartbeat=20, retry_base=0, watch_interval=0.02)


@pytest.fixture
def facts(engine: Engine) -> Facts:
    """What is really stored."""
    return Facts(engine)


@pytest.fixture
def gate(engine: Engine) -> Iterator[Gate]:
    """Holds statements between their snapshot and their locks."""
    gate = Gate(engine)
    yield gate
    gate.close()


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every statement that is sent."""
    seen: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)
