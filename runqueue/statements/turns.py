"""Whose turn it is: the tenants that a claim serves next, how many runs of each, under a tenant policy.

Tenants with waiting runs are walked through in the order of their names by index probes, from where the last claim
stopped, around and around: a deficit round robin (Shreedhar and Varghese, 1995) with one quantum a revolution. In the
revolution r a tenant of weight w may have floor(w·(r+1)) − floor(w·r) runs, so that any weight comes out exactly over
some revolutions, with nothing stored. Whoever has no due run, or is at its cap, gives its turn to those who follow. So
a claim costs what its batch costs, not what tenants or runs there are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Executable,
    Float,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    column,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    table,
    true,
)
from sqlalchemy.sql import FromClause
from sqlalchemy.sql.selectable import LateralFromClause
from sqlalchemy.sql.visitors import replacement_traverse

from runqueue.decisions import TenantPolicy
from runqueue.schema.tables import Tables
from runqueue.statements.lanes import given_lanes, present_lanes
from runqueue.statements.parts import NONE, ONE, STATEMENT_TIME, array, choose, materialized

BATCH = bindparam("batch", type_=BigInteger)
AFTER = bindparam("after", type_=Text)
BEFORE_ALL = literal("", Text)
"""Below every name: names are not empty."""

SEEN_IN_FLIGHT = literal_column("1000", BigInteger)
"""How many runs in flight of a tenant are counted where they only tell who has had least."""


def candidate(t: Tables) -> FromClause:
    """What a tenant policy's expressions are written over: a tenant's id, with its row of `agent_run_tenants`."""
    return table("candidate", *(column(c.name, c.type) for c in t.tenants.c))


def turns(t: Tables, policy: TenantPolicy, *, any_kind: bool) -> Executable:
    """The next turns, in order: whose (tenant_id, cap), in which revolution, and how many runs (quota).

    Every row has also where the walk ended (end_tenant, end_revolution) and whether it went all the way round
    (`complete`); where nobody has a turn the only row has no tenant. Parameters: those of the lanes, `batch` runs that
    the turns are for, at most so many `steps`, and where to begin: `after`, `revolution`, the `credit` of that tenant.
    """
    lanes = present_lanes(t, with_leased=False) if any_kind else given_lanes(t)
    ring = _ring(t, policy, lanes)
    seen = materialized(select(ring).where(~_beyond(ring)), "seen")
    whole = materialized(
        select(func.coalesce(func.bool_or(_round(ring)), false()).label("complete")),
        "whole",
    )
    visits = _by_revolution(seen, whole) if policy.usage is None else _by_usage(seen)
    given = _cut(visits).subquery("given")
    end = select(seen.c.tenant_id, seen.c.revolution).order_by(seen.c.place.desc()).limit(ONE).subquery("end_")
    return (
        select(
            given.c.tenant_id,
            given.c.cap,
            given.c.revolution,
            cast(given.c.quota, BigInteger).label("quota"),
            end.c.tenant_id.label("end_tenant"),
            end.c.revolution.label("end_revolution"),
            whole.c.complete,
        )
        .select_from(whole.join(end, true()).outerjoin(given, true()))
        .order_by(given.c.place)
    )


def lock_tenants(t: Tables) -> Executable:
    """Which of the `tenants` nobody else is claiming for; others leave them alone until this transaction ends.

    Who counts a tenant's runs in flight, in the next statement, must be the only one who claims for it. Tried, never
    waited for; a lock of a name, so that no tenant needs a row.
    """
    given = func.unnest(array("tenants", Text())).table_valued(column("tenant_id", Text), name="g").render_derived()
    salt = literal(f"runqueue.tenant.{t.schema}.", Text)
    lock = func.pg_try_advisory_xact_lock(func.hashtextextended(salt + given.c.tenant_id, NONE), type_=Boolean)
    tried = materialized(select(given.c.tenant_id, lock.label("locked")), "tried")
    return select(tried.c.tenant_id).where(tried.c.locked)


def given_turns(t: Tables, policy: TenantPolicy) -> CTE:
    """The parameters `tenants`, `quotas` and `locked` as rows (tenant_id, room), of those that still have room.

    Caps and what is in flight are read in this statement, whose snapshot is younger than the locks of `lock_tenants`.
    Who has a cap, and was not locked because it had none when its turn was looked up, is left alone.
    """
    given = (
        func.unnest(array("tenants", Text()), array("quotas", BigInteger()), array("locked", Boolean()))
        .table_valued(
            column("tenant_id", Text), column("quota", BigInteger), column("locked", Boolean),
            with_ordinality="place", name="g",
        )
        .render_derived()
    )  # fmt: skip
    rules = rules_of(t, policy, given.c.tenant_id, given)
    flying = in_flight(t, given.c.tenant_id, rules.c.cap, rules.c.cap.is_not(None))
    room = choose(
        (rules.c.cap.is_(None), given.c.quota),
        (~given.c.locked, NONE),
        otherwise=func.least(given.c.quota, rules.c.cap - flying.c.count),
    ).label("room")
    counted = (
        select(given.c.tenant_id, room, given.c.place)
        .select_from(given.join(rules, true()).join(flying, true()))
        .subquery("counted")
    )
    return materialized(
        select(counted.c.tenant_id, counted.c.room).where(counted.c.room > NONE).order_by(counted.c.place), "turns"
    )


def _ring(t: Tables, policy: TenantPolicy, lanes: CTE) -> CTE:
    """The walk: each row is a tenant that has pending runs, or, with an empty name, the step over the end."""
    start = select(AFTER.label("tenant_id"), bindparam("credit", type_=BigInteger).label("credit")).subquery("start")
    waiting = _first(t, lanes, t.runs.c.tenant_id == start.c.tenant_id, start)
    first = _visit(
        t, policy, select_from=start, tenant=start.c.tenant_id, waiting=waiting,
        place=NONE, revolution=bindparam("revolution", type_=BigInteger), wraps=NONE, total=NONE, credit=start.c.credit,
    )  # fmt: skip
    ring = first.cte("ring", recursive=True)
    following = _first(t, lanes, t.runs.c.tenant_id > ring.c.tenant_id, ring)
    over = choose((following.c.tenant_id.is_(None), ONE), otherwise=NONE)
    more = _visit(
        t, policy, select_from=ring, tenant=func.coalesce(following.c.tenant_id, BEFORE_ALL), waiting=following,
        place=ring.c.place + ONE, revolution=ring.c.revolution + over, wraps=ring.c.wraps + over, total=ring.c.total,
        credit=None,
    )  # fmt: skip
    return ring.union_all(
        more.where(
            ring.c.place < bindparam("steps", type_=BigInteger),
            ring.c.total < (BATCH if policy.usage is None else 2 * BATCH + 32),
            or_(ring.c.wraps == NONE, (ring.c.wraps == ONE) & (ring.c.tenant_id < AFTER)),
        )
    )


def _visit(
    t: Tables,
    policy: TenantPolicy,
    *,
    select_from: FromClause,
    tenant: ColumnElement[str],
    waiting: LateralFromClause,
    place: ColumnElement[int],
    revolution: ColumnElement[int],
    wraps: ColumnElement[int],
    total: ColumnElement[int],
    credit: ColumnElement[int] | None,
) -> Select[Any]:
    """What is to be known of one tenant. Each part is a LATERAL over the one before, so that nothing is said twice."""
    who = select(tenant.label("tenant_id")).correlate(select_from, waiting).lateral("who")
    rules = rules_of(t, policy, who.c.tenant_id, who)
    counted = rules.c.cap if policy.usage is None else func.coalesce(rules.c.cap, SEEN_IN_FLIGHT)
    flying = in_flight(t, who.c.tenant_id, counted, counted.is_not(None))
    share = _share(rules.c.weight, revolution) if credit is None else credit
    due = and_(
        waiting.c.available_at <= STATEMENT_TIME,
        or_(rules.c.cap.is_(None), flying.c.count < rules.c.cap),
        true() if credit is None else credit > NONE,
    )
    standing = (
        select(
            func.coalesce(due, false()).label("due"),
            (rules.c.cap - flying.c.count).label("room"),
            share.label("share"),
        )
        .correlate(select_from, waiting, rules, flying)
        .lateral("standing")
    )
    share_left = func.least(standing.c.share, func.coalesce(standing.c.room, standing.c.share))
    counts = share_left if policy.usage is None else ONE
    return select(
        who.c.tenant_id,
        place.label("place"),
        revolution.label("revolution"),
        wraps.label("wraps"),
        rules.c.weight,
        rules.c.cap,
        rules.c.usage,
        rules.c.cost,
        flying.c.count.label("in_flight"),
        standing.c.due,
        standing.c.room,
        standing.c.share,
        (total + choose((standing.c.due, counts), otherwise=NONE)).label("total"),
    ).select_from(
        select_from.join(waiting, true())
        .join(who, true())
        .join(rules, true())
        .join(flying, true())
        .join(standing, true())
    )


def rules_of(t: Tables, policy: TenantPolicy, tenant: ColumnElement[str], outside: FromClause) -> LateralFromClause:
    """What the policy says of a tenant, one row: weight, cap, usage and cost. `tenant` is a column of `outside`."""
    one = select(tenant.label("name")).correlate(outside).subquery("one")
    row = (
        select(one.c.name.label("tenant_id"), *(c for c in t.tenants.c if c.name != "tenant_id"))
        .select_from(one.outerjoin(t.tenants, t.tenants.c.tenant_id == one.c.name))
        .correlate(outside)
        .subquery("candidate")
    )

    def said(expression: ColumnElement[Any] | None, otherwise: ColumnElement[Any]) -> ColumnElement[Any]:
        return otherwise if expression is None else over(expression, row)

    weight = func.coalesce(over(policy.weight, row), literal_column("1.0"))
    return (
        select(
            cast(weight, Float(53)).label("weight"),
            cast(said(policy.cap, null()), BigInteger).label("cap"),
            cast(said(policy.usage, literal_column("0.0")), Float(53)).label("usage"),
            cast(said(policy.cost, null()), Float(53)).label("cost"),
        )
        .select_from(row)
        .correlate(outside)
        .offset(NONE)  # a fence: the planner would copy the policy's subqueries to every place that uses them
        .lateral("rules")
    )


def _first(t: Tables, lanes: CTE, which: ColumnElement[bool], outside: FromClause) -> LateralFromClause:
    """The first tenant in any of the lanes that has pending runs, and when its first one is due; one row, or nulls."""
    runs = t.runs
    entry = (
        select(runs.c.tenant_id, runs.c.available_at)
        .where(runs.c.locked_by.is_(None), runs.c.finished_at.is_(None))  # pending, as the index for walks says it
        .where(runs.c.queue == lanes.c.queue, runs.c.kind == lanes.c.kind, which)
        .order_by(runs.c.tenant_id, runs.c.available_at)
        .limit(ONE)
        .correlate(lanes, outside)
        .lateral("entry")
    )
    first = (
        select(entry.c.tenant_id, entry.c.available_at)
        .select_from(lanes.join(entry, true()))
        .order_by(entry.c.tenant_id, entry.c.available_at)
        .limit(ONE)
        .correlate(outside)
        .subquery("first")
    )
    one = select(literal(1).label("one")).subquery("one")
    return select(first.c.tenant_id, first.c.available_at).select_from(one.outerjoin(first, true())).lateral("waiting")


def in_flight(
    t: Tables,
    tenant: ColumnElement[str],
    most: ColumnElement[Any],
    counted: ColumnElement[bool],
    *,
    of: FromClause | None = None,
) -> LateralFromClause:
    """How many runs of a tenant are leased, counted up to `most`.

    Leased by `locked_by`, which heartbeats do not write, not by the status: by that the planner may read all leases.
    """
    runs = t.runs if of is None else of
    outside = {*tenant._from_objects, *most._from_objects}
    leased = (
        select(literal(1))
        .where(runs.c.locked_by.is_not(None), runs.c.tenant_id == tenant, counted)
        .limit(func.greatest(most, NONE))
        .correlate(*outside)
        .subquery("leased")
    )
    return select(func.count().label("count")).select_from(leased).correlate(*outside).lateral("flying")


def _share(weight: ColumnElement[Any], revolution: ColumnElement[int]) -> ColumnElement[int]:
    return cast(func.floor(weight * (revolution + ONE)) - func.floor(weight * revolution), BigInteger)


def _round(ring: CTE) -> ColumnElement[bool]:
    """The walk has come to where it began, or past it."""
    return or_(ring.c.wraps > ONE, (ring.c.wraps == ONE) & (ring.c.tenant_id >= AFTER))


def _beyond(ring: CTE) -> ColumnElement[bool]:
    """The walk's last step may go past where it began, or over the end a second time."""
    return or_(ring.c.wraps > ONE, (ring.c.wraps == ONE) & (ring.c.tenant_id > AFTER))


def _by_revolution(seen: CTE, whole: CTE) -> CTE:
    """Every turn: the seen tenants, again and again where they are all and so few that a batch takes more of them."""
    total = select(func.sum(seen.c.weight)).where(seen.c.due).scalar_subquery()
    again = choose((whole.c.complete, func.ceil(cast(BATCH, Float(53)) / total) + ONE), otherwise=literal_column("1.0"))
    loops = func.generate_series(NONE, cast(again, BigInteger) - ONE).table_valued("n", name="loops").render_derived()
    n = cast(loops.c.n, BigInteger)
    first = seen.c.place == NONE  # the rest of a turn that was begun: the same tenant comes again at the end
    share = choose((n == NONE, seen.c.share), (first, NONE), otherwise=_share(seen.c.weight, seen.c.revolution + n))
    taken = (
        select(
            seen.c.tenant_id,
            seen.c.cap,
            seen.c.room,
            (seen.c.revolution + n).label("revolution"),
            func.row_number().over(order_by=(n, seen.c.place)).label("place"),
            share.label("share"),
            func.sum(share).over(partition_by=seen.c.tenant_id, order_by=n).label("so_far"),
        )
        .select_from(seen.join(whole, seen.c.due).join(loops, true()))
        .subquery("taken")
    )
    before = taken.c.so_far - taken.c.share
    left = func.least(taken.c.share, func.greatest(taken.c.room - before, NONE))
    give = choose((taken.c.room.is_(None), taken.c.share), otherwise=left).label("give")
    return materialized(select(taken.c.tenant_id, taken.c.cap, taken.c.revolution, taken.c.place, give), "visits")


def _by_usage(seen: CTE) -> CTE:
    """Every turn: to whom a run more would leave with the least, for its weight."""
    due = select(func.count()).where(seen.c.due).scalar_subquery()
    most = func.least(BATCH, 4 * BATCH / func.greatest(due, ONE) + ONE)
    tickets = func.generate_series(ONE, most).table_valued("n", name="tickets").render_derived()
    n = cast(tickets.c.n, BigInteger)
    usual = select(func.avg(seen.c.cost)).scalar_subquery()
    cost = func.coalesce(seen.c.cost, usual, literal_column("1.0"))
    key = (seen.c.usage + (seen.c.in_flight + n) * cost) / seen.c.weight
    return materialized(
        select(
            seen.c.tenant_id,
            seen.c.cap,
            seen.c.revolution,
            func.row_number().over(order_by=(key, seen.c.place)).label("place"),
            ONE.label("give"),
        )
        .select_from(seen.join(tickets, true()))
        .where(seen.c.due, or_(seen.c.room.is_(None), n <= seen.c.room)),
        "visits",
    )


def _cut(visits: CTE) -> Select[Any]:
    """The turns that fill the batch; the last one whole, for what is cut off a turn would never be given."""
    running = select(
        *visits.c, (func.sum(visits.c.give).over(order_by=visits.c.place) - visits.c.give).label("before")
    ).subquery("running")
    quota = running.c.give.label("quota")
    return select(running.c.tenant_id, running.c.cap, running.c.revolution, running.c.place, quota).where(
        running.c.before < BATCH, running.c.give > NONE
    )


def over(expression: ColumnElement[Any], row: FromClause) -> ColumnElement[Any]:
    """A policy's expression, over this row instead of the `candidate` that it was written over."""

    def replace(element: Any, **_: Any) -> Any:
        owner = getattr(element, "table", None)
        return row.c[element.name] if getattr(owner, "name", None) == "candidate" else None

    replaced: ColumnElement[Any] = replacement_traverse(expression, {}, replace)
    return replaced
