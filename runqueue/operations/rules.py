"""The rules of an install: who orders and shares is the same for all its processes, and kept in the database."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection

from runqueue import values
from runqueue.decisions import Tenant
from runqueue.errors import InvalidRun, PluginError
from runqueue.hooks.loading import installed, near
from runqueue.operations.context import Context
from runqueue.statements import rules as statements
from runqueue.types import KEEP, Keep

LEAST, MOST, HIGHEST_CAP = 0.01, 1000, 1_000_000
"""Between which weights must be, and the highest cap."""

DECIDERS = {"claim_order": "orders claims", "tenant_policy": "decides on tenants"}
"""The rules that name a plugin, which the processes that claim must all use."""


def rules(connection: Connection, ctx: Context) -> dict[str, Any]:
    """All rules, by name."""
    return {row.name: values.decode(row.value) for row in connection.execute(statements.all_rules(ctx.t))}


def set_rule(connection: Connection, ctx: Context, name: str, value: Any) -> None:
    """Store a rule; None removes it, and the default counts. Raises InvalidRun, also where no plugin here reads it."""
    name = values.name(name, field="name")
    if value is None:
        if not connection.execute(statements.unset_rule(ctx.t), {"name": name}).rowcount:
            _require_known(ctx, name)
        return
    _require_known(ctx, name)
    text = values.encode(value, field=name, limit=8 * 1024, depth=8)
    _check(ctx, name, values.decode(text))
    connection.execute(statements.set_rule(ctx.t), {"name": name, "value": text})
    ctx.agreed.clear()


def _require_known(ctx: Context, name: str) -> None:
    known = (*DECIDERS, *ctx.hooks.rules)
    if name in known:
        return
    owner = name.partition(".")[0]
    unused = owner in installed().names and owner not in {x.name for x in ctx.hooks.plugins()}
    hint = f"; the plugin {owner!r} is installed, but not in use here" if unused else near(name, known)
    raise InvalidRun("name", f"no plugin in use reads a rule {name!r}{hint} (rules: {', '.join(known)})")


def _check(ctx: Context, name: str, value: Any) -> None:
    """A value that the plugin's expressions cannot read would fail every claim from then on."""
    if name in DECIDERS:
        if value != "" or name == "claim_order":
            values.name(value, field=name)
        return
    try:
        ctx.hooks.rules[name](value)
    except InvalidRun:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidRun(name, str(error)) from error


def require_agreement(connection: Connection, ctx: Context, *, state: bool = True) -> None:
    """Compare this process's configuration with the install's rules, once; the first that claims states them.

    Without `state` nothing is written: who only looks, or enqueues, need not know the plugins of those who claim.
    Raises PluginError where they differ: claims that disagree on caps would break them.
    """
    if ctx.agreed.is_set():
        return
    mine = {"claim_order": ctx.hooks.order_name(), "tenant_policy": ctx.hooks.tenant_policy_name()}
    found = rules(connection, ctx)
    if state and not found.keys() >= mine.keys():
        stated = {"names": list(mine), "values": [json.dumps(x) for x in mine.values()]}
        connection.execute(statements.settle_rules(ctx.t), stated)
        found = rules(connection, ctx)
    for name, what in DECIDERS.items():
        if name in found and found[name] != mine[name]:
            raise PluginError(
                f"in this install {found.get(name) or 'nobody'!r} {what}, in this process {mine[name] or 'nobody'!r}: "
                "change the plugins of the process, or those of all processes that claim and the rule of the install, "
                f"with `runqueue rules set {name} {json.dumps(mine[name])}`"
            )
    if found.keys() >= mine.keys():
        ctx.agreed.set()


def set_tenant(
    connection: Connection, ctx: Context, tenant_id: str, weight: float | Keep | None, cap: int | Keep | None
) -> None:
    """Store a tenant's share and cap; None for the default. Raises InvalidRun."""
    given: dict[str, Any] = {"tenant": values.name(tenant_id, field="tenant_id")}
    if weight is not KEEP:
        given["weight"] = None if weight is None else _weight(weight)
    if cap is not KEEP:
        given["cap"] = None if cap is None else values.integer(cap, field="cap", low=0, high=HIGHEST_CAP)
    if len(given) == 1:
        raise InvalidRun("weight", "must be given, or a cap")
    connection.execute(statements.set_tenant(ctx.t, tuple(given)[1:]), given)


def _weight(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST <= value <= MOST:
        raise InvalidRun("weight", f"must be a number from {LEAST} to {MOST}, not {value!r:.80}")
    return float(value)


def tenants(connection: Connection, ctx: Context, after: str, limit: int) -> list[Tenant]:
    """Tenants with a share, a cap, a usage or runs in flight, by name. Reads all leased runs."""
    start = "" if after == "" else values.name(after, field="after")
    rows = connection.execute(statements.tenants(ctx.t), {"after": start, "batch": limit})
    return [Tenant(**row._mapping) for row in rows]


def tenant(connection: Connection, ctx: Context, tenant_id: str) -> Tenant:
    """One tenant, also where nothing was ever set for it."""
    name = values.name(tenant_id, field="tenant_id")
    return Tenant(**connection.execute(statements.tenant(ctx.t), {"tenant": name}).one()._mapping)
