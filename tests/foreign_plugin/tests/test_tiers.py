"""The plugins of this distribution go through the kit, by the names under which they are installed."""

from __future__ import annotations

from runqueue.testing import ClaimOrderSuite, ClaimPolicySuite, Share, TenantPolicySuite


class TestFreshFirst(ClaimPolicySuite):
    claim = "fresh_first"


class TestOldestFirstByKind(ClaimOrderSuite):
    plugins = ("oldest_first_by_kind",)

    def key(self, run):
        return (run.kind, run.available_at, run.id)


class TestTiers(TenantPolicySuite):
    plugins = ("tiers",)
    shares = {"free-ant": Share(1, 2), "free-bee": Share(1, 2), "gold-cat": Share(4), "dog": Share(1)}  # noqa: RUF012

    def arrange(self, queue):
        pass  # the names say it all
