"""Taking turns: where each process is on its way around the tenants, and whom its next claim serves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Executable

from runqueue.operations.context import Context, Walk
from runqueue.statements.turns import turns as turns_statement

MOST = 500
"""How many runs one claim takes under a tenant policy: each tenant with a cap takes a lock of the server's table."""

STEPS = 1000
"""How many tenants without a due run are passed over by one claim, besides those of its batch."""


@lru_cache(maxsize=64)
def _statement(ctx: Context, any_kind: bool) -> Executable:
    assert ctx.tenants is not None
    return turns_statement(ctx.t, ctx.tenants, any_kind=any_kind)


def take_turns(connection: Connection, ctx: Context, lanes: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """The tenants that this claim may serve, as parameters of the claim.

    In the claim's transaction, before it: the locks of the tenants with a cap last to its end.
    """
    key = (tuple(lanes["queues"]), tuple(lanes.get("kinds", ())))
    walk = ctx.walks.of(key)
    rows = connection.execute(
        _statement(ctx, "kinds" not in lanes),
        {
            **{x: lanes[x] for x in ("queues", "kinds", "deadlines", "on_lost") if x in lanes},
            "batch": min(batch, MOST),
            "steps": STEPS + 4 * batch,
            "after": walk.after,
            "revolution": walk.revolution,
            "credit": walk.credit,
            "salt": f"runqueue.tenant.{ctx.t.schema}.",
        },
    ).all()
    stop = rows[0]
    ctx.walks.moved(key, Walk(stop.stop_tenant, stop.stop_revolution, stop.stop_credit))
    served = [row for row in rows if row.tenant_id is not None and row.locked]
    ctx.walks.fruitless = 0 if served or stop.complete else ctx.walks.fruitless + 1
    return {
        "tenants": [row.tenant_id for row in served],
        "quotas": [row.quota for row in served],
        "caps": [row.cap for row in served],
    }
