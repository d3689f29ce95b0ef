"""Fault points: leases that end by the database's clock, connections that are cut, workers that are killed."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Engine, text

from runqueue.testing.databases import autocommit
from runqueue.types import Lease

if TYPE_CHECKING:
    from runqueue.testing.suite import PluginSuite

Point = Literal["handler", "saved", "commit"]
"""Where a worker is killed: in its handler; after a checkpoint was committed; just before the commit of another one."""

EXPIRE = text(
    "update runqueue.agent_runs set locked_until = clock_timestamp() - interval '1 s', "
    "updated_at = clock_timestamp() - interval '1 h' where id = any(:ids) and status = 'leased'"
)
END = text(
    "update runqueue.agent_runs set locked_until = clock_timestamp() - interval '1 s' "
    "where id = any(:ids) and status = 'leased'"
)
CUT = text(
    "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() "
    "and pid <> pg_backend_pid() and application_name like 'runqueue%'"
)


class Faults:
    """What can go wrong in one database."""

    def __init__(self, url: str, engine: Engine) -> None:
        self._url = url
        self._engine = engine

    def expire(self, *leases: Lease, backoff: bool = False) -> None:
        """Let leases have ended, and, unless `backoff`, so long ago that the wait of a lost run has passed."""
        with self._engine.begin() as connection:
            found = connection.execute(END if backoff else EXPIRE, {"ids": [x.run_id for x in leases]}).rowcount
        if found != len(leases):
            raise AssertionError(f"{len(leases) - found} of {len(leases)} runs are not leased")

    def cut(self) -> int:
        """End all sessions of queues in this database; how many there were."""
        with autocommit(self._url) as connection:
            return int(connection.execute(CUT).scalar_one())

    def kill_worker(self, suite: PluginSuite, point: Point, states: tuple[Any, Any] = (None, None)) -> None:
        """Start a worker process with the suite's queue, which SIGKILLs itself in a run of the kind `victim`.

        At `saved` it has saved the first of the `states`, at `commit` it was about to commit the second one.
        """
        kind = type(suite)
        told = {
            "module": kind.__module__,
            "file": inspect.getfile(kind),
            "name": kind.__qualname__,
            "path": sys.path,
            "url": self._url,
            "point": point,
            "states": states,
        }
        done = subprocess.run(
            [sys.executable, "-m", "runqueue.testing.victim"],
            env=os.environ
            | {"RUNQUEUE_VICTIM": json.dumps(told), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != -signal.SIGKILL:
            raise AssertionError(f"the worker ended with {done.returncode} and was not killed:\n{done.stderr}")
