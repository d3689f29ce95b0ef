"""Where a run stands, and what holds it there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Executable, Text, Uuid, bindparam, func, literal, or_, select, true
from sqlalchemy.sql.selectable import LateralFromClause

from runqueue.decisions import TenantPolicy
from runqueue.schema.tables import Tables
from runqueue.statements.parts import ANY_KIND, PENDING, STATEMENT_TIME, in_seconds, run_columns
from runqueue.statements.turns import in_flight, rules_of

MANY = 1000
"""How many runs ahead are counted."""


@lru_cache(maxsize=64)
def standing(t: Tables, policy: TenantPolicy | None = None) -> Executable:
    """What `explain` needs of a hot run: itself, seconds until due, until its lease ends, what is paused and why.

    `paused_kind` is null where nothing is, and empty where the whole queue is. `cap` and `in_flight`, counted up to the
    cap, are the tenant's. `ahead` counts runs of its kind, under a policy those of its tenant only.
    """
    runs, pauses = t.runs, t.pauses
    tenant = bindparam("tenant", type_=Text)

    def paused(column: ColumnElement[str]) -> ColumnElement[Any]:
        applies = pauses.c.queue == runs.c.queue, or_(pauses.c.kind == ANY_KIND, pauses.c.kind == runs.c.kind)
        return select(column).where(*applies).order_by(pauses.c.kind).limit(1).correlate(runs).scalar_subquery()

    other = runs.alias("other")
    ahead = (
        select(other.c.id)
        .where(
            other.c.status == PENDING,
            other.c.queue == runs.c.queue,
            other.c.kind == runs.c.kind,
            other.c.priority >= runs.c.priority,
            other.c.available_at < runs.c.available_at,
            true() if policy is None else other.c.tenant_id == runs.c.tenant_id,
        )
        .limit(MANY)
        .correlate(runs)
        .lateral("ahead")
    )
    count = select(func.count()).select_from(ahead).correlate(runs).scalar_subquery()
    capped = _capped(t, policy)
    return (
        select(
            *run_columns(runs),
            in_seconds(runs.c.available_at - STATEMENT_TIME).label("due_in"),
            in_seconds(runs.c.locked_until - STATEMENT_TIME).label("lease_left"),
            paused(pauses.c.kind).label("paused_kind"),
            paused(pauses.c.reason).label("paused_reason"),
            count.label("ahead"),
            capped.c.cap,
            capped.c.in_flight,
        )
        .select_from(runs.join(capped, true()))
        .where(runs.c.id == bindparam("run_id", type_=Uuid), or_(tenant.is_(None), runs.c.tenant_id == tenant))
    )


def _capped(t: Tables, policy: TenantPolicy | None) -> LateralFromClause:
    """The cap of a run's tenant, null for none, and how much of it is used."""
    runs = t.runs
    if policy is None:
        policy = TenantPolicy(weight=literal(1.0))
    rules = rules_of(t, policy, runs.c.tenant_id, runs)
    flying = in_flight(t, runs.c.tenant_id, rules.c.cap, rules.c.cap.is_not(None), of=t.runs.alias("leased"))
    capped = select(rules.c.cap, flying.c.count.label("in_flight")).select_from(rules.join(flying, true()))
    return capped.correlate(runs).lateral("capped")
