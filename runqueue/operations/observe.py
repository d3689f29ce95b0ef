"""Telling observers of runs that a statement has moved without returning them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from runqueue.operations.context import Context
from runqueue.operations.rows import run_of
from runqueue.statements.reading import by_ids

FINISHED = "runqueue_runs_finished"


def observe_finished(connection: Connection, ctx: Context, ids: Sequence[UUID]) -> None:
    """Read the runs, in the transaction that moved them, and tell of them; without an observer do nothing."""
    if ids and ctx.hooks.observes(FINISHED):
        rows = connection.execute(by_ids(ctx.t), {"ids": list(ids)})
        ctx.hooks.runs_finished(connection, [run_of(row) for row in rows], ctx.t.schema)
