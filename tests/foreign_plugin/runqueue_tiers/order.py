"""One kind after the other, in each the oldest first: for fleets in which a change of kinds is dear."""

from __future__ import annotations

from sqlalchemy import Column, DateTime, Index, MetaData, Table, Text, Uuid, text

from runqueue import ClaimOrder, PluginSchema, hookimpl


@hookimpl
def runqueue_claim_order(runs: Table) -> ClaimOrder:
    """Priorities count for nothing."""
    return ClaimOrder(terms=(runs.c.kind, runs.c.available_at, runs.c.id))


@hookimpl
def runqueue_schema(schema: str) -> PluginSchema:
    """In a lane there is one kind, so the index need not have it twice."""
    runs = Table(
        "agent_runs",
        MetaData(schema=schema),
        *(Column(x, Text) for x in ("queue", "kind", "status")),
        Column("available_at", DateTime(timezone=True)),
        Column("id", Uuid),
    ).c
    terms = (runs.queue, runs.kind, runs.available_at, runs.id)
    return PluginSchema(indexes=(Index("tiers_order_idx", *terms, postgresql_where=text("status = 'pending'")),))
