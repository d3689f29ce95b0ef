"""What handlers really did: each execution is a row, written on a connection of its own, outside of any lease."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import make_url

from support.tools import eventually

TABLES = """
create table fx (
    n bigint generated always as identity, run_id uuid not null, attempt int not null,
    worker text not null, what text not null, at timestamptz not null default clock_timestamp());
create table gate (name text primary key);
"""


class Effects:
    """The table `fx` of a database, and gates at which handlers wait until a test opens them."""

    def __init__(self, url: str) -> None:
        self._dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

    def _sql(self, statement: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(self._dsn, autocommit=True, application_name="effects") as connection:
            cursor = connection.execute(statement, parameters)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def create(self) -> None:
        """Make the tables."""
        self._sql(TABLES)

    def note(self, run: Any, what: str = "start", worker: str = "here") -> None:
        """One more effect of this run's attempt."""
        statement = "insert into fx (run_id, attempt, worker, what) values (%s, %s, %s, %s)"
        self._sql(statement, run.id, run.attempt, worker, what)

    def all(self, run_id: UUID, what: str = "start") -> list[tuple[int, str]]:
        """Attempt and worker of each such effect, in order."""
        return self._sql("select attempt, worker from fx where run_id = %s and what = %s order by n", run_id, what)

    def attempts(self, run_id: UUID, what: str = "start") -> list[int]:
        """The attempts that had such an effect, in order."""
        return [attempt for attempt, _ in self.all(run_id, what)]

    def gaps(self, run_id: UUID) -> list[float]:
        """Seconds between one start and the next."""
        rows = self._sql(
            "select extract(epoch from at - lag(at) over (order by n))::float8 from fx "
            "where run_id = %s and what = 'start' order by n",
            run_id,
        )
        return [gap for (gap,) in rows[1:]]

    def await_start(self, run_id: UUID, times: int = 1, timeout: float = 15) -> None:
        """Wait until the run was started so many times."""
        eventually(lambda: len(self.all(run_id)) >= times, timeout, what=f"start {times} of run {run_id}")

    def open(self, name: str) -> None:
        """Let the handlers go on that wait at this gate."""
        self._sql("insert into gate values (%s) on conflict do nothing", name)

    def is_open(self, name: str) -> bool:
        """Whether that was said."""
        return bool(self._sql("select 1 from gate where name = %s", name))
