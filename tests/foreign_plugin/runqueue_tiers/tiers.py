"""Tiers by the names of tenants: `gold-…` has a larger share, `free-…` a cap."""

from __future__ import annotations

from sqlalchemy import FromClause, Integer, case, cast, null

from runqueue import InvalidRun, PluginSchema, TenantPolicy, hookimpl
from runqueue_plugins.fairness import Fairness


class Tiers:
    """`gold_weight`: the share of a gold tenant beside 1 of the others; `free_cap`: runs in flight of a free one."""

    def __init__(self, gold_weight: float = 4.0, free_cap: int = 2) -> None:
        if not gold_weight > 0:
            raise InvalidRun("gold_weight", f"must be greater than 0, not {gold_weight!r}")
        if not isinstance(free_cap, int) or free_cap < 0:
            raise InvalidRun("free_cap", f"must be a whole number from 0 on, not {free_cap!r}")
        self._gold_weight = float(gold_weight)
        self._free_cap = free_cap

    @hookimpl
    def runqueue_tenant_policy(self, tenants: FromClause) -> TenantPolicy:
        """By the name alone; no row of the tenant is needed."""
        name = tenants.c.tenant_id
        return TenantPolicy(
            weight=case((name.startswith("gold-"), self._gold_weight), else_=1.0),
            cap=case((name.startswith("free-"), self._free_cap), else_=cast(null(), Integer)),
        )

    @hookimpl
    def runqueue_schema(self, schema: str) -> PluginSchema:
        """The indexes that any tenant policy needs, whoever decides: those of the bundled one."""
        return Fairness().runqueue_schema(schema)
