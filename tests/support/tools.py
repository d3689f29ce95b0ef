"""Small acts that many tests do. Times are always the database's, a test's own clock may be off."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Engine, text

from runqueue.testing.databases import autocommit, eventually, with_database

__all__ = ["age", "autocommit", "eventually", "make_due", "terminate_backends", "with_database"]


def age(engine: Engine, run_id: UUID, seconds: float = 1) -> None:
    """Let a lease have ended so many seconds ago, and the last heartbeat so long before that no backoff is left."""
    statement = text(
        "update runqueue.agent_runs set locked_until = clock_timestamp() - make_interval(secs => :seconds), "
        "updated_at = clock_timestamp() - interval '1 hour' where id = :id and status = 'leased'"
    )
    with engine.begin() as connection:
        changed = connection.execute(statement, {"id": run_id, "seconds": seconds}).rowcount
    assert changed == 1, f"run {run_id} is not leased"


def make_due(engine: Engine, run_id: UUID) -> None:
    """Let a pending run be due now, whatever its backoff or schedule."""
    statement = text(
        "update runqueue.agent_runs set available_at = clock_timestamp() - interval '1 ms' "
        "where id = :id and status = 'pending'"
    )
    with engine.begin() as connection:
        assert connection.execute(statement, {"id": run_id}).rowcount == 1, f"run {run_id} is not pending"


def terminate_backends(url: str, application_name: str = "runqueue%") -> int:
    """End the sessions of this database whose name is like that; how many there were."""
    statement = text(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and application_name like :name"
    )
    with autocommit(url) as connection:
        return int(connection.execute(statement, {"name": application_name}).scalar_one())
