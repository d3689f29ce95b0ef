"""The lanes of a claim: the pairs of queue and kind that a worker takes and nobody has paused."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Float,
    Select,
    Text,
    cast,
    column,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
)

from runqueue.schema.tables import Tables
from runqueue.statements.parts import ANY_KIND, LEASED, ONE, PENDING, array, materialized


def given_lanes(t: Tables) -> CTE:
    """The parameters `queues` and, each with its deadline and on_lost, `kinds`: every pair that is not paused."""
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


def present_lanes(t: Tables, *, with_leased: bool) -> CTE:
    """The pairs of the parameter `queues` with the kinds that have pending, or also leased, runs there."""
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
    return materialized(select(*lane.c).where(~paused), "lanes")
