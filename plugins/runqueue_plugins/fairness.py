"""Shares between tenants that have work waiting, and caps on what each has in flight.

Weights and caps are the install's: `runqueue tenants`, and the rules `fairness.cap` and `fairness.half_life`. What a
tenant cannot use, others get. Turns are counted in runs; or, with `charge`, in what the runs took: then who has had
least, for its weight, is served first, and what was had is forgotten by half in `fairness.half_life` seconds. A lease
that is lost is charged when a sweep ends it; where a claim takes the run over at once, it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Double,
    FromClause,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
    cast,
    column,
    func,
    select,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql import quoted_name

from runqueue import InvalidRun, PluginSchema, Run, TenantPolicy, hookimpl

CAP_RULE = "fairness.cap"
"""The cap of tenants that have none of their own; without the rule there is none."""

HALF_LIFE_RULE = "fairness.half_life"
HALF_LIFE = 600.0
"""Seconds in which half of what a tenant has had is forgotten, where the rule does not say otherwise."""

MOST, LONGEST = 1_000_000, 10 * 365 * 86400.0
"""The highest cap and the longest half-life that the rules may have."""

NEWEST = 0.2
"""How much the newest run counts in what a run of the tenant usually takes."""

Charge = Literal["count", "seconds", "spent"]


class Fairness:
    """`charge`: what shares are measured in: the `count` of runs, `seconds` of leases, or what runs have `spent`."""

    def __init__(self, charge: Charge = "count") -> None:
        if charge not in ("count", "seconds", "spent"):
            raise InvalidRun("charge", f"must be 'count', 'seconds' or 'spent', not {charge!r}")
        self._charge = charge
        if charge == "count":
            self.runqueue_runs_finished = None  # type: ignore[method-assign,assignment]  # nothing to be called for

    @hookimpl
    def runqueue_tenant_policy(self, tenants: FromClause, rules: FromClause) -> TenantPolicy:
        """The tenant's own weight and cap, else 1 and the rule's."""
        charged = self._charge != "count"
        return TenantPolicy(
            weight=func.coalesce(tenants.c.weight, 1.0),
            cap=func.coalesce(tenants.c.cap, _rule(rules, CAP_RULE, Integer)),
            usage=func.coalesce(_left(tenants, rules), 0.0) if charged else None,
            cost=tenants.c.cost if charged else None,
        )

    @hookimpl
    def runqueue_runs_finished(self, connection: Connection, runs: Sequence[Run], schema: str) -> None:
        """Charge the tenants, each once, in the order of their names, so that two transactions cannot deadlock."""
        charges: dict[str, list[float]] = {}
        for run in runs:
            charge = self._of(run)
            if charge is not None:
                charges.setdefault(run.tenant_id, []).append(charge)
        if charges:
            rows = [
                {"tenant_id": name, "usage": sum(x), "cost": sum(x) / len(x)} for name, x in sorted(charges.items())
            ]
            connection.execute(_charge(schema, rows))

    @hookimpl
    def runqueue_rules(self) -> Mapping[str, Callable[[Any], None]]:
        """The cap of those without one, and how fast is forgotten what was had."""
        return {CAP_RULE: _check_cap, HALF_LIFE_RULE: _check_half_life}

    @hookimpl
    def runqueue_schema(self, schema: str) -> PluginSchema:
        """The waiting runs by tenant, for the walk around the tenants and for each one's order; the leased ones too."""
        runs = Table(
            "agent_runs",
            MetaData(schema=schema),
            *(Column(x, Text) for x in ("queue", "kind", "tenant_id", "status")),
            Column("priority", Integer),
            Column("available_at", DateTime(timezone=True)),
            Column("id", Uuid),
        ).c
        # each says in its own words which runs it has, so that the planner cannot take one for another
        walked, waiting = (
            text("locked_by is null and finished_at is null"),
            text("status >= 'pending' and status <= 'pending'"),
        )
        flying = text("locked_by is not null")
        lane = (runs.queue, runs.kind, runs.tenant_id)
        return PluginSchema(
            indexes=(
                Index("agent_runs_walk_idx", *lane, runs.available_at, postgresql_where=walked),
                Index(
                    "agent_runs_tenant_idx", *lane, runs.priority.desc(), runs.available_at, runs.id,
                    postgresql_where=waiting,
                ),
                Index("agent_runs_flying_idx", runs.tenant_id, postgresql_where=flying),
            )
        )  # fmt: skip

    def _of(self, run: Run) -> float | None:
        if self._charge == "spent":
            return run.spent if run.status.terminal else None
        return (run.updated_at - run.leased_at).total_seconds() if run.leased_at else None


def _check_cap(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise InvalidRun(CAP_RULE, f"must be a whole number from 0 to {MOST}, not {value!r:.80}")


def _check_half_life(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= LONGEST:
        raise InvalidRun(HALF_LIFE_RULE, f"must be seconds from 1 to {LONGEST:.0f}, not {value!r:.80}")


def _rule(rules: FromClause, name: str, kind: Any) -> ColumnElement[Any]:
    value = cast(cast(rules.c.value_json, Text), kind)
    return select(value).where(rules.c.name == name).scalar_subquery()


def _left(tenants: FromClause, rules: FromClause) -> ColumnElement[Any]:
    """What is left of a tenant's usage. The exponent is clamped: PostgreSQL calls an underflow an error."""
    half_life = func.greatest(func.coalesce(_rule(rules, HALF_LIFE_RULE, Double), HALF_LIFE), 1.0)
    age = cast(func.extract("epoch", func.statement_timestamp() - tenants.c.used_at), Double)
    return tenants.c.usage * func.power(cast(0.5, Double), func.least(func.greatest(age, 0.0) / half_life, 60.0))


def _charge(schema: str, rows: list[dict[str, Any]]) -> Any:
    names = ("tenant_id", "usage", "used_at", "cost")
    tenants = table("agent_run_tenants", *(column(x) for x in names), schema=schema)
    # the schema as a part of the name: in ON CONFLICT … SET SQLAlchemy leaves out schemas, those of subqueries too
    rules = table(quoted_name(f"{schema}.agent_run_rules", quote=False), column("name"), column("value_json"))
    row = insert(tenants).values([{**x, "used_at": func.clock_timestamp()} for x in rows])
    new = row.excluded
    return row.on_conflict_do_update(
        index_elements=["tenant_id"],
        set_={
            "usage": func.coalesce(_left(tenants, rules), 0.0) + new.usage,
            "used_at": new.used_at,
            "cost": func.coalesce(tenants.c.cost + (new.cost - tenants.c.cost) * NEWEST, new.cost),
        },
    )
