"""The first due runs in the claim order, locked: of some lanes, and of one tenant in them or of all.

Every part is an index range that ends at its limit. The distinct levels of an order, priorities usually, are stepped
through by probes, and in each the due runs are a range: runs that are due later are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CTE, ColumnElement, Float, Integer, Select, cast, func, literal_column, select, true
from sqlalchemy.sql.selectable import FromClause, LateralFromClause
from sqlalchemy.types import TypeEngine

from runqueue.decisions import ClaimOrder
from runqueue.schema.tables import Tables
from runqueue.statements.parts import ONE, PENDING, STATEMENT_TIME, in_epoch


@dataclass(frozen=True, slots=True)
class Seat:
    """Whose runs are looked for, and how many: all tenants', or one's. `tenant` is an expression of the outer row.

    It is written as text, because SQLAlchemy would not correlate a CTE inside a LATERAL with what is outside of it.
    """

    limit: ColumnElement[int]
    tenant: ColumnElement[str] | None = None

    @property
    def nested(self) -> bool:
        """Whether the CTEs depend on the outer row, and so belong inside its LATERAL."""
        return self.tenant is not None


def heads(t: Tables, lanes: CTE, order: ClaimOrder, seat: Seat) -> Select[Any]:
    """Rows (id, deadline, on_lost), at most `seat.limit`, in the claim order, each locked; locked ones are skipped."""
    if order.level is None:
        return select(_lane_heads(t, lanes, order, seat, [], seat.limit))
    levels = _levels(t, lanes, order.level, seat)
    if order.step is not None:
        return _merged(t, lanes, order, seat, levels)
    head = _lane_heads(t, lanes, order, seat, [levels], seat.limit, _same(order.level, levels.c.level))
    # No ORDER BY here: the nested loop already goes level by level, and a sort would lock every level's heads.
    return (
        select(head.c.id, head.c.deadline, head.c.on_lost)
        .select_from(levels.join(head, true()))
        .where(levels.c.level.is_not(None))
        .limit(seat.limit)
    )


def in_order(order: ClaimOrder, rows: FromClause) -> list[ColumnElement[Any]]:
    """The claim order over rows that have all its columns."""
    terms: list[ColumnElement[Any]] = [rows.c[x.name] for x in order.terms]
    if order.level is None:
        return terms
    level = rows.c[order.level.name]
    if order.step is None:
        return [level.desc(), *terms]
    return [_rank(order, level)(terms[0]), *terms]


def _merged(t: Tables, lanes: CTE, order: ClaimOrder, seat: Seat, levels: CTE) -> Select[Any]:
    """The heads of all levels by rank: looked at without a lock first, then locked, so many of each level.

    Twice as many as wanted are looked at: others may have locked the first ones a moment ago.
    """
    rank = _rank(order, levels.c.level)
    seen = _lane_heads(t, lanes, order, seat, [levels], 2 * seat.limit, _same(order.level, levels.c.level), lock=False)
    ranked = (
        select(levels.c.level, rank(seen.c.available_at).label("rank"))
        .select_from(levels.join(seen, true()))
        .where(levels.c.level.is_not(None))
        .order_by(literal_column("rank"), *(seen.c[x.name] for x in order.terms))
        .limit(2 * seat.limit)
        .cte("ranked", nesting=seat.nested)
    )
    shares = (
        select(ranked.c.level, func.count().label("share")).group_by(ranked.c.level).cte("shares", nesting=seat.nested)
    )
    head = _lane_heads(t, lanes, order, seat, [shares], shares.c.share, _same(order.level, shares.c.level))
    return (
        select(head.c.id, head.c.deadline, head.c.on_lost)
        .select_from(shares.join(head, true()))
        .order_by(_rank(order, shares.c.level)(head.c.available_at), *(head.c[x.name] for x in order.terms))
        .limit(seat.limit)
    )


def _rank(order: ClaimOrder, level: ColumnElement[Any]) -> Any:
    step = cast(order.step, Float(53))
    return lambda available_at: in_epoch(available_at) - level * step


def _lane_heads(
    t: Tables,
    lanes: CTE,
    order: ClaimOrder,
    seat: Seat,
    outside: Sequence[FromClause],
    limit: ColumnElement[int],
    *level: ColumnElement[bool],
    lock: bool = True,
) -> LateralFromClause:
    runs = t.runs
    lane = (
        select(*dict.fromkeys((runs.c.id, *order.terms)))
        .where(*_pending(runs, seat), runs.c.queue == lanes.c.queue, runs.c.kind == lanes.c.kind)
        .where(*level, runs.c.available_at <= STATEMENT_TIME)
        .order_by(*order.terms)
        .limit(limit)
        .correlate(lanes, *outside)
    )
    if lock:
        lane = lane.with_for_update(key_share=True, skip_locked=True)
    head = lane.lateral("lane")
    return (
        select(*head.c, lanes.c.deadline, lanes.c.on_lost)
        .select_from(lanes.join(head, true()))
        .order_by(*(head.c[x.name] for x in order.terms))
        .limit(limit)
        .correlate(*outside)
        .lateral("head")
    )


def _levels(t: Tables, lanes: CTE, level: ColumnElement[Any], seat: Seat) -> CTE:
    runs = t.runs

    def highest(outside: Sequence[CTE], *below: ColumnElement[bool]) -> ColumnElement[Any]:
        head = (
            select(level.label("level"))
            .where(*_pending(runs, seat), runs.c.queue == lanes.c.queue, runs.c.kind == lanes.c.kind, *below)
            .order_by(level.desc())
            .limit(ONE)
            .correlate(lanes, *outside)
            .lateral("top")
        )
        best = select(func.max(head.c.level)).select_from(lanes.join(head, true())).correlate(*outside)
        return cast(best.scalar_subquery(), Integer).label("level")

    first = select(highest([])).cte("levels", recursive=True, nesting=seat.nested)
    return first.union_all(select(highest([first], level < first.c.level)).where(first.c.level.is_not(None)))


def _same(column: ColumnElement[Any] | None, level: ColumnElement[Any]) -> ColumnElement[bool]:
    assert column is not None
    return column == level


def _pending(runs: FromClause, seat: Seat) -> list[ColumnElement[bool]]:
    """The pending runs, of all tenants or of one.

    For one in the words of the index for that: the planner, where it believes that there are few tenants, would take
    the index for all of them, and read through the runs of the others.
    """
    if seat.tenant is None:
        return [runs.c.status == PENDING]
    return [runs.c.status >= PENDING, runs.c.status <= PENDING, runs.c.tenant_id == seat.tenant]


def outer(name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
    """A column of the outer row, by its name."""
    return literal_column(name, type_)
