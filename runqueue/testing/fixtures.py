"""The fixtures, as a pytest plugin: `pytest_plugins = ["runqueue.testing.fixtures"]` in the `conftest.py` at the top.

`runqueue_server` is the URL of a server: RUNQUEUE_TEST_DSN, else one that is started here, which the processes of xdist
share. `runqueue_databases` makes migrated databases on it. The suites have their own fixtures on top of these.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from runqueue.devdb import Server, database
from runqueue.testing.rig import Databases
from runqueue.testing.server import DSN, HOME, SPEED, new_home, programs


def pytest_configure(config: pytest.Config) -> None:
    """Choose the directory of the server, which is started when the first test asks for it."""
    config.addinivalue_line("markers", "audit(skip=(), off=False): invariants that are not checked after the test")
    if not hasattr(config, "workerinput") and DSN not in os.environ:
        # in the environment, so that the workers of xdist find it: they share the server that lives there
        os.environ[HOME], config.runqueue_home = str(new_home()), True  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what a killed process has left running, and remove it."""
    if hasattr(config, "runqueue_home"):
        home = Path(os.environ.pop(HOME))
        if (home / "pgdata").exists():
            Server(programs(), home).stop("immediate")
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def runqueue_server() -> Iterator[str]:
    """A server on which databases may be made; the last of the processes that share it stops it."""
    if DSN in os.environ:
        yield make_url(os.environ[DSN]).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    else:
        with database(Path(os.environ[HOME]), settings=SPEED, programs=programs()) as url:
            yield url


@pytest.fixture(scope="session")
def runqueue_databases(runqueue_server: str) -> Iterator[Databases]:
    """Migrated, audited databases: a template for each set of plugins, made once."""
    with Databases(runqueue_server) as databases:
        yield databases
