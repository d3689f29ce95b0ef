"""The claim: one statement that picks, locks, marks and returns runs.

It is composed of *lanes* (the queue and kind pairs that this worker takes and nobody paused), *arms* (where a policy
finds candidates: due pending runs, expired leases) and an order. Every part is a lateral index range that ends at the
batch's limit, so a claim costs what its batch costs: runs of other queues and kinds, and runs that are due later, are
never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Executable,
    Float,
    Select,
    Text,
    bindparam,
    cast,
    false,
    func,
    or_,
    select,
    true,
    union_all,
    update,
)

from runqueue.decisions import ClaimOrder, TenantPolicy
from runqueue.schema.tables import Tables
from runqueue.statements.expiry import ending, expired_event, expired_status, lost_and_due, outcome_values
from runqueue.statements.heads import Seat, heads, in_order, outer
from runqueue.statements.journal import record
from runqueue.statements.lanes import given_lanes, present_lanes
from runqueue.statements.parts import (
    CLOCK,
    LEASED,
    NONE,
    ONE,
    STATEMENT_TIME,
    choose,
    in_seconds,
    joined,
    materialized,
    run_columns,
    seconds,
)
from runqueue.statements.turns import given_turns


@dataclass(frozen=True, slots=True)
class Scope:
    """What an arm may use: the tables, the lanes, the order, how many candidates are still wanted, and, under a tenant
    policy, whose turn it is."""

    t: Tables
    lanes: CTE
    order: ClaimOrder
    limit: ColumnElement[int]
    turns: CTE | None = None


Arm = Callable[[Scope], CTE]
"""Builds a CTE (id, expired, ends, deadline, on_lost) of locked candidates, at most `scope.limit`."""


def claim(
    t: Tables, order: ClaimOrder, arms: Sequence[Arm], *, any_kind: bool, tenants: TenantPolicy | None = None
) -> Executable:
    """The claim statement of a policy with these arms, tried in this order.

    Parameters: queues, kinds, deadlines, on_lost (arrays), batch, lease, worker; with `any_kind` only queues, batch,
    lease, worker; with an expired arm also retry_base and retry_cap; under a tenant policy also those of `given_turns`.
    An expired run that must end is ended in passing.
    """
    batch = bindparam("batch", type_=BigInteger)
    lanes = present_lanes(t, with_leased=len(arms) > 1) if any_kind else given_lanes(t)
    turns = None if tenants is None else given_turns(t, tenants)
    found: list[CTE] = []
    for arm in arms:
        taken = sum((select(func.count()).where(~x.c.ends).scalar_subquery() for x in found), start=NONE)
        limit = batch if not found else func.greatest(batch - taken, NONE)
        found.append(arm(Scope(t, lanes, order, limit, turns)))
    candidates = _together(found)
    return _mark(t, order, candidates, expiring=len(arms) > 1)


def pending_arm(scope: Scope) -> CTE:
    """Runs that are due, in the claim order; under a tenant policy, of the tenants whose turn it is."""
    if scope.turns is None:
        found = heads(scope.t, scope.lanes, scope.order, Seat(scope.limit)).subquery("found")
    else:
        found = _of_turns(scope, scope.turns).subquery("found")
    return materialized(
        select(found.c.id, false().label("expired"), false().label("ends"), found.c.deadline, found.c.on_lost), "due"
    )


def _of_turns(scope: Scope, turns: CTE) -> Select[Any]:
    seat = Seat(outer("turn.room", BigInteger()), outer("turn.tenant_id", Text()))
    head = heads(scope.t, scope.lanes, scope.order, seat).lateral("head")
    turn = turns.alias("turn")
    # No ORDER BY: the nested loop goes turn by turn, and a sort would lock the heads of all of them.
    return select(head.c.id, head.c.deadline, head.c.on_lost).select_from(turn.join(head, true())).limit(scope.limit)


def expired_arm(scope: Scope) -> CTE:
    """Runs whose lease ran out, the longest first; those whose backoff has not passed yet are left."""
    runs, lanes = scope.t.runs, scope.lanes
    lane = (
        select(runs.c.id, runs.c.locked_until, ending(runs).label("ends"))
        .where(runs.c.status == LEASED, runs.c.queue == lanes.c.queue, runs.c.kind == lanes.c.kind)
        .where(runs.c.locked_until <= STATEMENT_TIME, or_(ending(runs), lost_and_due(runs)))
        .order_by(runs.c.locked_until)
        .limit(scope.limit)
        # FOR UPDATE, not NO KEY UPDATE: a transaction of the run's holder may keep a KEY SHARE lock on it
        .with_for_update(skip_locked=True)
        .lateral("lane")
    )
    source = (
        select(lane.c.id, true().label("expired"), lane.c.ends, lanes.c.deadline, lanes.c.on_lost)
        .select_from(lanes.join(lane, true()))
        .order_by(lane.c.locked_until)
        .limit(scope.limit)
    )
    return materialized(source, "overdue")


def _mark(t: Tables, order: ClaimOrder, candidates: CTE, *, expiring: bool) -> Executable:
    runs = t.runs
    take: dict[str, Any] = {
        "status": LEASED,
        "attempts": runs.c.attempts + ONE,
        "fencing_token": runs.c.fencing_token + ONE,
        "locked_by": bindparam("worker", type_=Text),
        "locked_until": CLOCK + seconds(bindparam("lease", type_=Float(53))),
        "deadline_at": CLOCK + seconds(candidates.c.deadline),
        "on_lost": candidates.c.on_lost,
        "leased_at": CLOCK,
        "updated_at": CLOCK,
    }
    if expiring:
        end = outcome_values(t, expired_status(runs, LEASED))
        names = {**take, **end}
        take = {
            name: choose((candidates.c.ends, end.get(name, runs.c[name])), otherwise=take.get(name, runs.c[name]))
            for name in names
        }
        take["event_seq"] = runs.c.event_seq + choose((candidates.c.expired, ONE), otherwise=NONE)
    marked = (
        update(runs)
        .where(runs.c.id == joined(candidates))
        .values(take)
        .returning(
            *run_columns(runs),
            in_seconds(runs.c.locked_until - CLOCK).label("time_left"),
            candidates.c.expired.label("expired"),
        )
        .cte("marked")
    )
    saved = (
        select(t.checkpoints.c.seq, cast(t.checkpoints.c.state_json, Text).label("state"))
        .where(t.checkpoints.c.run_id == marked.c.id, t.checkpoints.c.seq == marked.c.checkpoint_seq)
        .limit(ONE)  # keeps it a probe for each run: a join is planned for more runs than a claim has, as a scan
        .lateral("saved")
    )
    result = select(
        *marked.c, saved.c.seq.label("checkpoint_found"), saved.c.state.label("checkpoint_json")
    ).select_from(marked.outerjoin(saved, true()))
    result = result.order_by(marked.c.expired.desc(), *in_order(order, marked))
    if expiring:
        result = result.add_cte(record(t, marked, *expired_event(marked), marked.c.expired))
    return result


def _together(found: Sequence[CTE]) -> CTE:
    if len(found) == 1:
        return found[0]
    return materialized(union_all(*(select(*x.c) for x in found)), "candidates")
