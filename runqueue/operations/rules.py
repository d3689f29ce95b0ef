"""The rules of an install: who orders and shares is the same for all its processes, and kept in the database."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection

from runqueue import values
from runqueue.decisions import Tenant
from runqueue.errors import InvalidRun, PluginError
from runqueue.operations.context import Context
from runqueue.statements import rules as statements

DECIDERS = {"claim_order": "orders claims", "tenant_policy": "decides on tenants"}
"""The rules that name a plugin, which the processes that claim must all use."""


def rules(connection: Connection, ctx: Context) -> dict[str, Any]:
    """All rules, by name."""
    return {row.name: values.decode(row.value) for row in connection.execute(statements.all_rules(ctx.t))}


def set_rule(connection: Connection, ctx: Context, name: str, value: Any) -> None:
    """Store a rule; None removes it, and the default counts. Raises InvalidRun."""
    name = values.name(name, field="name")
    if value is None:
        connection.execute(statements.unset_rule(ctx.t), {"name": name})
        return
    text = values.encode(value, field="value", limit=8 * 1024, depth=8)
    connection.execute(statements.set_rule(ctx.t), {"name": name, "value": text})


def require_agreement(connection: Connection, ctx: Context) -> None:
    """Compare this process's configuration with the install's rules, once; the first that claims states them.

    Raises PluginError where they differ: claims that disagree on caps would break them.
    """
    if ctx.walks.agreed:
        return
    mine = {"claim_order": ctx.hooks.order_name(), "tenant_policy": ctx.hooks.tenant_policy_name()}
    found = rules(connection, ctx)
    if not found.keys() >= mine.keys():
        stated = {"names": list(mine), "values": [json.dumps(x) for x in mine.values()]}
        connection.execute(statements.settle_rules(ctx.t), stated)
        found = rules(connection, ctx)
    for name, what in DECIDERS.items():
        if found.get(name) != mine[name]:
            raise PluginError(
                f"in this install {found.get(name) or 'nobody'!r} {what}, in this process {mine[name] or 'nobody'!r}: "
                "change the plugins of the process, or those of all processes that claim and the rule of the install, "
                f"with `runqueue rules set {name} {json.dumps(mine[name])}`"
            )
    ctx.walks.agreed = True


def set_tenant(
    connection: Connection, ctx: Context, tenant_id: str, weight: float | None = None, cap: int | None = None
) -> None:
    """Store a tenant's share and cap; None for the default. Counts from the next claim on. Raises InvalidRun."""
    name = values.name(tenant_id, field="tenant_id")
    if weight is not None and not 0.01 <= values.seconds(weight, field="weight") <= 1000:
        raise InvalidRun("weight", f"must be between 0.01 and 1000, not {weight!r}")
    if cap is not None:
        cap = values.integer(cap, field="cap", low=0, high=1_000_000)
    connection.execute(statements.set_tenant(ctx.t), {"tenant": name, "weight": weight, "most": cap})


def tenants(connection: Connection, ctx: Context, after: str, limit: int) -> list[Tenant]:
    """Tenants with a share, a cap, a usage or runs in flight, by name. Reads all leased runs."""
    rows = connection.execute(statements.tenants(ctx.t), {"after": after, "batch": limit})
    return [Tenant(**row._mapping) for row in rows]
