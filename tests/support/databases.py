"""Databases that many tests use, one after the other."""

from __future__ import annotations

from runqueue.testing.databases import at_rest, autocommit, new_database

__all__ = ["at_rest", "empty", "new_database"]

EMPTY = """
set session_replication_role = replica;
delete from runqueue.agent_runs;
delete from runqueue.agent_run_events;
delete from runqueue.agent_run_checkpoints;
delete from runqueue.agent_run_keys;
delete from runqueue.agent_run_pauses;
delete from runqueue_audit.audit;
drop table if exists public.mine;
set session_replication_role = origin
"""


def empty(url: str) -> None:
    """Remove all rows, past the audit: what a new database would be, and cheaper."""
    with autocommit(url) as connection:
        connection.exec_driver_sql(EMPTY)
