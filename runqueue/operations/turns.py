"""Taking turns: whom the next claim of this process serves, under a tenant policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Executable

from runqueue.operations.context import Context
from runqueue.operations.walk import End, Place, Turn
from runqueue.statements import turns as statements

MOST = 500
"""How many runs one claim takes under a tenant policy: each tenant with a cap takes a lock of the server's table."""

AHEAD = 4
"""How many claims of this size the turns are looked up for at once."""

STEPS = 1000
"""How many tenants without a due run are passed over at once, besides those that have a turn."""


def take_turns(connection: Connection, ctx: Context, lanes: Mapping[str, Any], batch: int) -> tuple[list[Turn], bool]:
    """The next turns, for at most `batch` runs; and whether they were looked up just now."""
    walk = ctx.walks.of((tuple(lanes["queues"]), tuple(lanes.get("kinds", ()))))
    wanted = min(batch, MOST)
    turns = walk.take(wanted)
    if turns is not None:
        return turns, False
    # without a lock: coroutines of one loop look at the same time, and who waits for a lock keeps the loop from all
    found, end = _look(connection, ctx, walk.place, lanes, min(max(AHEAD * batch, 16), MOST))
    return walk.looked(found, end, wanted), True


def forget_turns(ctx: Context, lanes: Mapping[str, Any]) -> None:
    """Turns that were looked up came to less than they promised: look again before the next claim."""
    ctx.walks.of((tuple(lanes["queues"]), tuple(lanes.get("kinds", ())))).forget()


def as_parameters(connection: Connection, ctx: Context, turns: Sequence[Turn]) -> dict[str, Any]:
    """The turns as parameters of the claim, each tenant once; those of tenants with a cap locked to its end."""
    quotas: dict[str, int] = {}
    for turn in turns:
        quotas[turn.tenant_id] = quotas.get(turn.tenant_id, 0) + turn.quota
    capped = list({turn.tenant_id for turn in turns if turn.cap is not None})
    mine = set(connection.execute(_lock(ctx), {"tenants": capped}).scalars()) if capped else set[str]()
    return {"tenants": list(quotas), "quotas": list(quotas.values()), "locked": [name in mine for name in quotas]}


def _look(
    connection: Connection, ctx: Context, place: Place, lanes: Mapping[str, Any], batch: int
) -> tuple[list[Turn], End]:
    parameters = {
        **{x: lanes[x] for x in ("queues", "kinds", "deadlines", "on_lost") if x in lanes},
        "batch": batch,
        "steps": STEPS + AHEAD * batch,
        "after": place.after,
        "revolution": place.revolution,
        "credit": place.credit,
    }
    rows = connection.execute(_statement(ctx, "kinds" not in lanes), parameters).all()
    turns = [Turn(row.tenant_id, row.cap, row.revolution, row.quota) for row in rows if row.tenant_id is not None]
    return turns, End(Place(rows[0].end_tenant, rows[0].end_revolution), rows[0].complete)


@lru_cache(maxsize=64)
def _statement(ctx: Context, any_kind: bool) -> Executable:
    assert ctx.tenants is not None
    return statements.turns(ctx.t, ctx.tenants, any_kind=any_kind)


@lru_cache(maxsize=64)
def _lock(ctx: Context) -> Executable:
    return statements.lock_tenants(ctx.t)
