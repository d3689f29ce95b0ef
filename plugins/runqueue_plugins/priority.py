"""The default order: priority, then the time at which a run became available, then age."""

from __future__ import annotations

from sqlalchemy import Table

from runqueue import ClaimOrder, hookimpl


@hookimpl
def runqueue_claim_order(runs: Table) -> ClaimOrder:
    """Higher priorities first; ids are UUIDv7, so the last term is age."""
    return ClaimOrder(level=runs.c.priority, terms=(runs.c.available_at, runs.c.id))
