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
    Integer,
    Select,
    Text,
    bindparam,
    cast,
    column,
    exists,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.sql.selectable import LateralFromClause

from runqueue.order import ClaimOrder
from runqueue.schema.tables import Tables
from runqueue.statements.expiry import ending, expired_event, expired_status, lost_and_due, outcome_values
from runqueue.statements.journal import record
from runqueue.statements.parts import (
    ANY_KIND,
    CLOCK,
    LEASED,
    NONE,
    ONE,
    PENDING,
    STATEMENT_TIME,
    array,
    choose,
    in_seconds,
    joined,
    run_columns,
    seconds,
)


@dataclass(frozen=True, slots=True)
class Scope:
    """What an arm may use: the tables, the lanes, the order, and how many candidates are still wanted."""

    t: Tables
    lanes: CTE
    order: ClaimOrder
    limit: ColumnElement[int]


Arm = Callable[[Scope], CTE]
"""Builds a CTE (id, expired, ends, deadline, on_lost) of locked candidates, at most `scope.limit`."""


def claim(t: Tables, order: ClaimOrder, arms: Sequence[Arm], *, any_kind: bool) -> Executable:
    """The claim statement of a policy with these arms, tried in this order.

    Parameters: queues, kinds, deadlines, on_lost (arrays), batch, lease, worker; with `any_kind` only queues, batch,
    lease, worker; with an expired arm also retry_base and retry_cap. An expired run that must end is ended in passing.
    """
    batch = bindparam("batch", type_=BigInteger)
    lanes = _present_lanes(t, with_leased=len(arms) > 1) if any_kind else _given_lanes(t)
    found: list[CTE] = []
    for arm in arms:
        taken = sum((select(func.count()).where(~x.c.ends).scalar_subquery() for x in found), start=NONE)
        limit = batch if not found else func.greatest(batch - taken, NONE)
        found.append(arm(Scope(t, lanes, order, limit)))
    candidates = _together(found)
    return _mark(t, order, candidates, expiring=len(arms) > 1)


def pending_arm(scope: Scope) -> CTE:
    """Runs that are due, in the claim order."""
    runs, lanes, order = scope.t.runs, scope.lanes, scope.order

    def heads(outside: Sequence[CTE], *level: ColumnElement[bool]) -> LateralFromClause:
        lane = (
            select(*dict.fromkeys((runs.c.id, *order.terms)))
            .where(runs.c.status == PENDING, runs.c.queue == lanes.c.queue, runs.c.kind == lanes.c.kind, *level)
            .where(runs.c.available_at <= STATEMENT_TIME)
            .order_by(*order.terms)
            .limit(scope.limit)
            .with_for_update(key_share=True, skip_locked=True)
            .correlate(*outside)
            .lateral("lane")
        )
        return (
            select(lane.c.id, lanes.c.deadline, lanes.c.on_lost)
            .select_from(lanes.join(lane, true()))
            .order_by(*(lane.c[x.name] for x in order.terms))
            .limit(scope.limit)
            .correlate(*outside[1:])
            .lateral("head")
        )

    if order.level is None:
        head: Any = heads([lanes])
        source = select(head.c.id, false().label("expired"), false().label("ends"), head.c.deadline, head.c.on_lost)
    else:
        levels = _levels(scope, order.level)
        head = heads([lanes, levels], order.level == levels.c.level)
        source = (
            select(head.c.id, false().label("expired"), false().label("ends"), head.c.deadline, head.c.on_lost)
            .select_from(levels.join(head, true()))
            .where(levels.c.level.is_not(None))
        )
    # No ORDER BY here: the nested loop already goes level by level, and a sort would lock every level's heads.
    return _materialized(source.limit(scope.limit), "due")


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
    return _materialized(source, "overdue")


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
    result = (
        select(*marked.c, saved.c.seq.label("checkpoint_found"), saved.c.state.label("checkpoint_json"))
        .select_from(marked.outerjoin(saved, true()))
        .where(marked.c.status == LEASED)
    )
    level = () if order.level is None else (marked.c[order.level.name].desc(),)
    result = result.order_by(marked.c.expired.desc(), *level, *(marked.c[x.name] for x in order.terms))
    if expiring:
        result = result.add_cte(record(t, marked, *expired_event(marked), marked.c.expired))
    return result


def _together(found: Sequence[CTE]) -> CTE:
    if len(found) == 1:
        return found[0]
    return _materialized(union_all(*(select(*x.c) for x in found)), "candidates")


def _materialized(source: Any, name: str) -> CTE:
    # MATERIALIZED, for a LIMIT … SKIP LOCKED that a plan runs twice locks other rows the second time
    cte: CTE = source.cte(name).prefix_with("MATERIALIZED")
    return cte


def _given_lanes(t: Tables) -> CTE:
    queues = func.unnest(array("queues", Text())).table_valued(column("queue", Text), name="q").render_derived()
    kinds = (
        func.unnest(array("kinds", Text()), array("deadlines", Float(53)), array("on_lost", Text()))
        .table_valued(column("kind", Text), column("deadline", Float), column("on_lost", Text), name="k")
        .render_derived()
    )
    return _open_lanes(
        t,
        select(queues.c.queue, kinds.c.kind, kinds.c.deadline, kinds.c.on_lost).select_from(queues.join(kinds, true())),
    )


def _present_lanes(t: Tables, *, with_leased: bool) -> CTE:
    statuses = [PENDING, LEASED] if with_leased else [PENDING]
    lanes = [_distinct_kinds(t, value, f"present_{n}") for n, value in enumerate(statuses)]
    every = [select(x.c.queue, x.c.kind).where(x.c.kind.is_not(None)) for x in lanes]
    found = (every[0] if len(every) == 1 else every[0].union(*every[1:])).subquery("found")
    nothing = cast(null(), Float(53)).label("deadline")
    return _open_lanes(
        t, select(found.c.queue, found.c.kind, nothing, literal_column("'retry'", Text).label("on_lost"))
    )


def _distinct_kinds(t: Tables, status: ColumnElement[str], name: str) -> CTE:
    runs = t.runs

    def next_kind(queue: ColumnElement[str], *after: ColumnElement[bool]) -> ColumnElement[Any]:
        first = select(runs.c.kind).where(runs.c.status == status, runs.c.queue == queue, *after)
        return first.order_by(runs.c.kind).limit(ONE).scalar_subquery().label("kind")

    queues = func.unnest(array("queues", Text())).table_valued(column("queue", Text), name="q").render_derived()
    first = select(queues.c.queue, next_kind(queues.c.queue)).cte(name, recursive=True)
    more = select(first.c.queue, next_kind(first.c.queue, runs.c.kind > first.c.kind)).where(first.c.kind.is_not(None))
    return first.union_all(more)


def _open_lanes(t: Tables, lanes: Select[Any]) -> CTE:
    lane = lanes.subquery("lane")
    pauses = t.pauses
    paused = exists().where(
        pauses.c.queue == lane.c.queue, or_(pauses.c.kind == ANY_KIND, pauses.c.kind == lane.c.kind)
    )
    return _materialized(select(*lane.c).where(~paused), "lanes")


def _levels(scope: Scope, level: ColumnElement[Any]) -> CTE:
    runs, lanes = scope.t.runs, scope.lanes

    def highest(outside: Sequence[CTE], *below: ColumnElement[bool]) -> ColumnElement[Any]:
        head = (
            select(level.label("level"))
            .where(runs.c.status == PENDING, runs.c.queue == lanes.c.queue, runs.c.kind == lanes.c.kind, *below)
            .order_by(level.desc())
            .limit(ONE)
            .correlate(lanes, *outside)
            .lateral("top")
        )
        best = select(func.max(head.c.level)).select_from(lanes.join(head, true())).correlate(*outside)
        return cast(best.scalar_subquery(), Integer).label("level")

    first = select(highest([])).cte("levels", recursive=True)
    return first.union_all(select(highest([first], level < first.c.level)).where(first.c.level.is_not(None)))
