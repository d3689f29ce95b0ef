"""Claiming runs and renewing their leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Executable, Row

from runqueue.decisions import KeepLast
from runqueue.operations.context import Context
from runqueue.operations.observe import observe_finished
from runqueue.operations.rows import run_of
from runqueue.operations.rules import require_agreement
from runqueue.operations.turns import as_parameters, forget_turns, take_turns
from runqueue.statements import journal
from runqueue.statements.claim import claim as claim_statement
from runqueue.statements.lease import heartbeat as heartbeat_statement
from runqueue.types import ClaimedRun, Heartbeat, Lease, RunStatus
from runqueue.values import decode


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind that a claimer handles. `deadline`: seconds from the claim after which no heartbeat helps any more."""

    name: str
    deadline: float | None = None
    on_lost: str = "retry"


@lru_cache(maxsize=64)
def statement(ctx: Context, any_kind: bool) -> Executable:
    """The claim statement of a queue."""
    return claim_statement(ctx.t, ctx.order, ctx.policy.arms(), any_kind=any_kind, tenants=ctx.tenants)


def claim(
    connection: Connection,
    ctx: Context,
    worker_id: str,
    queues: Sequence[str],
    batch: int,
    kinds: Sequence[Kind] | None,
    lease: float,
) -> list[ClaimedRun]:
    """Lease at most `batch` runs to `worker_id` for `lease` seconds, in the claim order.

    One statement, and under a tenant policy one before it. With `kinds` None, runs of every kind.
    """
    require_agreement(connection, ctx)
    parameters: dict[str, Any] = {
        "queues": list(queues),
        "batch": batch,
        "lease": lease,
        "worker": worker_id,
        "retry_base": ctx.settings.retry_base,
        "retry_cap": ctx.settings.retry_cap,
    }
    if kinds is not None:
        parameters["kinds"] = [x.name for x in kinds]
        parameters["deadlines"] = [x.deadline for x in kinds]
        parameters["on_lost"] = [x.on_lost for x in kinds]
    if ctx.tenants is None:
        rows = connection.execute(statement(ctx, kinds is None), parameters).all()
    else:
        rows = _claim_in_turns(connection, ctx, parameters, batch)
    observe_finished(connection, ctx, [row.id for row in rows if row.status != RunStatus.LEASED])
    taken = [row for row in rows if row.status == RunStatus.LEASED]
    states = _states(connection, ctx, taken)
    claimed = [_claimed(row, states) for row in taken]
    ctx.hooks.runs_claimed(connection, claimed, ctx.t.schema)
    return claimed


def _claim_in_turns(connection: Connection, ctx: Context, parameters: dict[str, Any], batch: int) -> Sequence[Row[Any]]:
    """Claim for the tenants whose turn it is; where their turns are old and came to nothing, look for others once."""
    while True:
        turns, fresh = take_turns(connection, ctx, parameters, batch)
        given = as_parameters(connection, ctx, turns)
        rows = connection.execute(statement(ctx, "kinds" not in parameters), parameters | given).all()
        if len(rows) < sum(turn.quota for turn in turns):
            forget_turns(ctx, parameters)
        if rows or fresh:
            return rows


def _claimed(row: Row[Any], states: Mapping[UUID, str]) -> ClaimedRun:
    lease = Lease(row.id, row.fencing_token, row.locked_until)
    checkpoint = states.get(row.id, row.checkpoint_json)
    return ClaimedRun(run_of(row), lease, row.time_left, decode(checkpoint))


def _states(connection: Connection, ctx: Context, rows: Sequence[Row[Any]]) -> Mapping[UUID, str]:
    """Checkpoints that the claim's own statement did not see.

    They are kept elsewhere; or were committed between its snapshot and its lock, and a second statement sees them.
    """
    if not isinstance(ctx.store, KeepLast):
        return ctx.store.load(connection, [row.id for row in rows]) if rows else {}
    missed = [row.id for row in rows if row.checkpoint_seq and row.checkpoint_found is None]
    if not missed:
        return {}
    return {row.run_id: row.state for row in connection.execute(journal.checkpoints(ctx.t), {"ids": missed})}


def heartbeat(connection: Connection, ctx: Context, leases: Sequence[Lease], lease: float) -> list[Heartbeat]:
    """Renew the leases for `lease` seconds from now, all with one statement; say what became of each, in order."""
    if not leases:
        return []
    parameters = {"ids": [x.run_id for x in leases], "tokens": [x.fencing_token for x in leases], "lease": lease}
    found = {(row.id, row.token): row for row in connection.execute(heartbeat_statement(ctx.t), parameters)}
    return [_heartbeat(x, found[x.run_id, x.fencing_token]) for x in leases]


def _heartbeat(lease: Lease, row: Row[Any]) -> Heartbeat:
    if not row.renewed and not row.held:
        return Heartbeat(lease, renewed=False, lost=True, cancel_requested=False, time_left=0.0)
    now = Lease(lease.run_id, lease.fencing_token, row.locked_until)
    return Heartbeat(now, row.renewed, lost=False, cancel_requested=row.cancel_requested, time_left=row.time_left)
