"""A fresh, migrated, audited database for each test. Postgres comes from RUNQUEUE_TEST_DSN, else it is started here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, NullPool, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from support.proxy import Proxy

from runqueue.settings import Settings
from runqueue.testing import audit
from runqueue.testing.databases import at_rest, autocommit, eventually, new_database
from runqueue.testing.server import DSN

if TYPE_CHECKING:
    from runqueue import AsyncRunQueue, RunQueue

pytest_plugins = ["runqueue.testing.fixtures"]
collect_ignore = ["foreign_plugin"]  # somebody else's tests, which run where that is installed
POLICIES = ["reaper", "takeover"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too (or RUNQUEUE_SLOW=1)")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's processes would inherit deafness
    if not hasattr(config, "workerinput") and DSN not in os.environ:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a killed run stops its server too


def _is_left_to_the_whole_suite(item: pytest.Item) -> bool:
    """What the fast suite has in another form: both policies in conformance and the state machine, else the reaper."""
    folder, given = item.path.parent.name, getattr(getattr(item, "callspec", None), "params", {})
    policy, face = given.get("policy"), given.get("face")
    if folder == "conformance":
        return (policy, face) in {("takeover", "sync"), ("reaper", "async")}
    if folder in {"graphs", "testing"}:
        return True
    return policy == "takeover" and item.path.name != "test_state_machine.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _is_left_to_the_whole_suite(item):
            item.add_marker(pytest.mark.slow)
    if config.getoption("--slow") or os.environ.get("RUNQUEUE_SLOW") == "1":
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def server_url(runqueue_server: str) -> str:
    """A server on which databases may be made; the last of the processes that share it stops it."""
    return runqueue_server


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """The name of a database with the schema, the indexes of both policies and of fairness, and the audit."""
    from runqueue.policies import policy
    from runqueue.schema import migrate
    from runqueue.schema.tables import tables
    from runqueue_plugins.fairness import Fairness

    with new_database(server_url) as url:
        engine = create_engine(url, poolclass=NullPool)
        indexes = [index for name in POLICIES for index in policy(name).indexes(tables("runqueue"))]
        indexes += Fairness().runqueue_schema("runqueue").indexes
        migrate.upgrade(engine, indexes=tuple(indexes))
        with engine.begin() as connection:
            audit.install(connection)
        yield str(make_url(url).database)


@pytest.fixture
def blank_url(server_url: str) -> Iterator[str]:
    """A database with nothing in it, for migrations and hosts. Nothing is audited."""
    with new_database(server_url) as url:
        yield url
        at_rest(url)


@pytest.fixture
def url(request: pytest.FixtureRequest, server_url: str, template: str) -> Iterator[str]:
    """A migrated database of the test's own. After the test the invariants must hold, and nobody be busy in it."""
    marker = request.node.get_closest_marker("audit")
    options = marker.kwargs if marker else {}
    skip = options.get("skip", ())
    with new_database(server_url, template) as url:
        yield url
        if "INV7" not in skip:
            at_rest(url)
        if not options.get("off", False):
            with autocommit(url) as connection:
                audit.check(connection, skip=skip)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The application's engine."""
    engine = create_engine(url)
    yield engine
    eventually(lambda: engine.pool.checkedout() == 0, 2, what="all connections back in the pool")  # type: ignore[attr-defined]
    engine.dispose()


@pytest.fixture
async def async_engine(url: str) -> AsyncIterator[AsyncEngine]:
    """The application's async engine."""
    engine = create_async_engine(url)
    yield engine
    held = engine.pool.checkedout()  # type: ignore[attr-defined]
    await engine.dispose()
    assert held == 0, f"{held} connections were not given back to the pool"


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """A network in front of the database: connect to `proxy.url`, then break it."""
    with Proxy(url) as proxy:
        yield proxy


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> str:
    """The test runs under each claim policy."""
    return str(request.param)


@pytest.fixture
def settings() -> Settings:
    """Short times, and retries that are due at once."""
    return Settings(
        lease=2, heartbeat=0.5, reap_interval=0.5, poll_interval=0.1, watch_interval=0.05,
        retry_base=0, cancel_grace=1, abandon_after=1, drain_timeout=2,
    )  # fmt: skip


@pytest.fixture
def queue(engine: Engine, policy: str, settings: Settings) -> Iterator[RunQueue]:
    """A queue under each policy."""
    from runqueue import RunQueue

    queue = RunQueue(engine, claim=policy, settings=settings)
    yield queue
    queue.close()


@pytest.fixture
async def aqueue(async_engine: AsyncEngine, policy: str, settings: Settings) -> AsyncIterator[AsyncRunQueue]:
    """An async queue under each policy."""
    from runqueue import AsyncRunQueue

    queue = AsyncRunQueue(async_engine, claim=policy, settings=settings)
    yield queue
    await queue.close()
