"""The sweep of expired leases."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from runqueue.operations.context import Context
from runqueue.operations.observe import observe_finished
from runqueue.statements.expiry import expired_ids
from runqueue.types import Reaped, RunStatus

log = logging.getLogger("runqueue.reap")

FIRST = UUID(int=0)


def reap(connection: Connection, ctx: Context, limit: int) -> Reaped:
    """Move at most `limit` expired runs, in id order, each to what the rules make of it. One statement."""
    return _sweep(connection, ctx, FIRST, limit)


def row_fault(error: DBAPIError) -> bool:
    """Whether a sweep failed because of a row, so that `reap_one_by_one` can move the others."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return not error.connection_invalidated and state[:2] in {"22", "23", "42", "P0"}


def reap_one_by_one(connection: Connection, ctx: Context, limit: int) -> Reaped:
    """The same, a savepoint for each run: the bad ones stay where they are and are counted."""
    total = Counter[str]()
    for run_id in connection.execute(expired_ids(ctx.t), {"after": FIRST, "batch": limit}).scalars().all():
        try:
            with connection.begin_nested():
                one = _sweep(connection, ctx, UUID(int=run_id.int - 1), 1)
        except DBAPIError as error:
            if not row_fault(error):
                raise
            total["failed"] += 1
            log.error("run %s cannot be moved from its expired lease: %s", run_id, type(error.orig).__name__)
        else:
            total.update(pending=one.pending, dead=one.dead, cancelled=one.cancelled)
    return Reaped(**total)


def _sweep(connection: Connection, ctx: Context, after: UUID, batch: int) -> Reaped:
    settings = ctx.settings
    parameters: dict[str, Any] = {
        "after": after,
        "batch": batch,
        "retry_base": settings.retry_base,
        "retry_cap": settings.retry_cap,
    }
    rows = connection.execute(ctx.policy.sweep(ctx.t), parameters).all()
    observe_finished(connection, ctx, [row.id for row in rows])
    moved = Counter(row.status for row in rows)
    return Reaped(pending=moved[RunStatus.PENDING], dead=moved[RunStatus.DEAD], cancelled=moved[RunStatus.CANCELLED])
