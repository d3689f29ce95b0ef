"""A fresh, migrated, audited database for each test. Postgres comes from RUNQUEUE_TEST_DSN, else it is started here."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, NullPool, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from support import audit
from support.databases import at_rest, new_database
from support.postgres import SPEED, new_home, programs
from support.proxy import Proxy
from support.tools import autocommit, eventually

from runqueue.devdb import Server, database
from runqueue.settings import Settings

if TYPE_CHECKING:
    from runqueue import AsyncRunQueue, RunQueue

DSN, HOME = "RUNQUEUE_TEST_DSN", "RUNQUEUE_TEST_HOME"
POLICIES = ["reaper", "takeover"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too (or RUNQUEUE_SLOW=1)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "audit(skip=(), off=False): invariants that are not checked after the test")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's processes would inherit deafness
    if not hasattr(config, "workerinput") and DSN not in os.environ:
        # in the environment, so that the workers of xdist find it: they share the server that lives there
        os.environ[HOME], config.runqueue_home = str(new_home()), True  # type: ignore[attr-defined]
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a killed run cleans up too


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "runqueue_home"):
        home = Path(os.environ.pop(HOME))
        if (home / "pgdata").exists():
            Server(programs(), home).stop("immediate")  # it runs only if a worker of xdist was killed
        shutil.rmtree(home, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow") or os.environ.get("RUNQUEUE_SLOW") == "1":
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A server on which databases may be made; the last of the processes that share it stops it."""
    if DSN in os.environ:
        yield make_url(os.environ[DSN]).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    else:
        with database(Path(os.environ[HOME]), settings=SPEED, programs=programs()) as url:
            yield url


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """The name of a database with the schema, the indexes of both policies, and the audit."""
    from runqueue.policies import policy
    from runqueue.schema import migrate
    from runqueue.schema.tables import tables

    with new_database(server_url) as url:
        engine = create_engine(url, poolclass=NullPool)
        indexes = [index for name in POLICIES for index in policy(name).indexes(tables("runqueue"))]
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
def queue(engine: Engine, policy: str, settings: Settings) -> RunQueue:
    """A queue under each policy."""
    from runqueue import RunQueue

    return RunQueue(engine, claim=policy, settings=settings)


@pytest.fixture
def aqueue(async_engine: AsyncEngine, policy: str, settings: Settings) -> AsyncRunQueue:
    """An async queue under each policy."""
    from runqueue import AsyncRunQueue

    return AsyncRunQueue(async_engine, claim=policy, settings=settings)
