"""Claim orders that break rules."""

from __future__ import annotations

from sqlalchemy import Column, DateTime, Index, MetaData, Table, Text, Uuid, text

from runqueue import ClaimOrder, PluginSchema, hookimpl
from runqueue.testing import ClaimOrderSuite

FOLLOW = ("test_claims_follow_the_order", "test_claims_of_any_kind_follow_the_order")
BACK = "test_runs_that_come_back_take_their_place"
INDEX = "test_an_index_serves_the_order"
LATER = "test_runs_that_are_due_later_are_not_looked_at"


class Backwards:
    """The other way round than it is said to be."""

    @hookimpl
    def runqueue_claim_order(self, runs):
        return ClaimOrder(level=runs.c.priority, terms=(runs.c.available_at, runs.c.id))


class TestBackwards(ClaimOrderSuite):
    plugins = (Backwards(),)
    fails = (*FOLLOW, BACK)

    def key(self, run):
        return (run.priority, run.available_at, run.id)


class ByTenant:
    """By an order that no index serves."""

    @hookimpl
    def runqueue_claim_order(self, runs):
        return ClaimOrder(terms=(runs.c.tenant_id, runs.c.available_at, runs.c.id))


class TestByTenant(ClaimOrderSuite):
    plugins = (ByTenant(),)
    fails = (INDEX, LATER)

    def key(self, run):
        return (run.tenant_id, run.available_at, run.id)


class ByAge:
    """By an index in which the runs that are due later come first."""

    @hookimpl
    def runqueue_claim_order(self, runs):
        return ClaimOrder(terms=(runs.c.created_at, runs.c.id))

    @hookimpl
    def runqueue_schema(self, schema):
        columns = [Column(x, Text) for x in ("queue", "kind", "status")]
        columns += [Column("created_at", DateTime(timezone=True)), Column("id", Uuid)]
        runs = Table("agent_runs", MetaData(schema=schema), *columns).c
        terms = (runs.queue, runs.kind, runs.created_at, runs.id)
        return PluginSchema(indexes=(Index("by_age_idx", *terms, postgresql_where=text("status = 'pending'")),))


class TestByAge(ClaimOrderSuite):
    plugins = (ByAge(),)
    fails = (LATER,)

    def key(self, run):
        return (run.created_at, run.id)
