"""Where a run stands, and what holds it there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Executable, Text, Uuid, bindparam, cast, func, null, or_, select, true
from sqlalchemy.sql.selectable import LateralFromClause

from runqueue.decisions import TenantPolicy
from runqueue.schema.tables import Tables
from runqueue.statements.parts import ANY_KIND, LEASED, NONE, PENDING, STATEMENT_TIME, in_seconds, run_columns
from runqueue.statements.turns import over

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
    one = select(runs.c.tenant_id.label("name")).correlate(runs).subquery("one")
    row = (
        select(one.c.name.label("tenant_id"), *(c for c in t.tenants.c if c.name != "tenant_id"))
        .select_from(one.outerjoin(t.tenants, t.tenants.c.tenant_id == one.c.name))
        .correlate(runs)
        .subquery("candidate")
    )
    expression = null() if policy is None or policy.cap is None else over(policy.cap, row)
    cap = select(cast(expression, BigInteger).label("cap")).select_from(row).correlate(runs).lateral("most")
    leased = runs.alias("leased")
    flying = (
        select(leased.c.id)
        .where(leased.c.status == LEASED, leased.c.tenant_id == runs.c.tenant_id, cap.c.cap.is_not(None))
        .limit(func.greatest(cap.c.cap, NONE))
        .correlate(runs, cap)
        .subquery("flying")
    )
    count = select(func.count()).select_from(flying).correlate(runs, cap).scalar_subquery()
    return select(cap.c.cap, count.label("in_flight")).select_from(cap).correlate(runs).lateral("capped")
