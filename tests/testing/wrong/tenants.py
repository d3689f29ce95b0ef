"""Tenant policies that break rules."""

from __future__ import annotations

from sqlalchemy import case, func, literal_column

from runqueue import TenantPolicy, hookimpl
from runqueue.testing import TenantPolicySuite
from runqueue_plugins.fairness import Fairness

CAP = "test_no_cap_is_passed_by_eight_claimers"
SLOT = "test_every_end_of_a_run_frees_its_slot_once"
LOST = "test_lost_runs_of_a_capped_tenant_are_recovered"
HEAD = "test_a_tenant_at_its_cap_keeps_nobody_waiting"
SHARES = "test_shares_are_as_the_weights"
UNUSED = "test_what_a_tenant_cannot_use_others_get"
UNKNOWN = "test_a_tenant_that_nobody_named_is_served"
COST = "test_a_claim_costs_its_batch"


class Plain:
    """Right: what the row says."""

    def weight(self, tenants):
        return func.coalesce(tenants.c.weight, 1.0)

    def cap(self, tenants):
        return tenants.c.cap

    @hookimpl
    def runqueue_tenant_policy(self, tenants):
        return TenantPolicy(weight=self.weight(tenants), cap=self.cap(tenants))

    @hookimpl
    def runqueue_schema(self, schema):
        return Fairness().runqueue_schema(schema)


class TestPlain(TenantPolicySuite):
    plugins = (Plain(),)
    fails = ()


class Generous(Plain):
    def cap(self, tenants):
        return tenants.c.cap + 1


class TestGenerous(TenantPolicySuite):
    plugins = (Generous(),)
    fails = (CAP, SLOT, LOST, HEAD, UNUSED)


class Stingy(Plain):
    def cap(self, tenants):
        return tenants.c.cap - 1


class TestStingy(TenantPolicySuite):
    plugins = (Stingy(),)
    fails = (SLOT, LOST, UNUSED)


class Nobody(Plain):
    """Tells tenants not apart."""

    @hookimpl
    def runqueue_tenant_policy(self, tenants):
        return None


class TestNobody(TenantPolicySuite):
    plugins = (Nobody(),)
    fails = (CAP, SLOT, LOST, HEAD, SHARES, UNUSED)


class Equal(Plain):
    def weight(self, tenants):
        return literal_column("1.0")


class TestEqual(TenantPolicySuite):
    plugins = (Equal(),)
    fails = (SHARES,)


class Leaks(Plain):
    """A slot is lost with each run that is given back."""

    def cap(self, tenants):
        released = "(select count(*) from runqueue.agent_run_events where type = 'run.released')"
        return tenants.c.cap - literal_column(released)


class TestLeaks(TenantPolicySuite):
    plugins = (Leaks(),)
    fails = (SLOT,)


class Closed(Plain):
    """Serves whom it knows."""

    def cap(self, tenants):
        return case((tenants.c.usage.is_(None), 0), else_=tenants.c.cap)


class TestClosed(TenantPolicySuite):
    plugins = (Closed(),)
    fails = (UNKNOWN,)


class NoIndex(Plain):
    @hookimpl
    def runqueue_schema(self, schema):
        return None


class TestNoIndex(TenantPolicySuite):
    plugins = (NoIndex(),)
    fails = (COST,)


class Raises(Plain):
    """An observer that raises: nothing fails but the test."""

    @hookimpl
    def runqueue_runs_claimed(self, runs):
        raise LookupError("in an observer")


class TestRaises(TenantPolicySuite):
    plugins = (Raises(),)
    fails = (CAP, SLOT, LOST, HEAD, SHARES, UNUSED, UNKNOWN, COST)
