"""The rules of an install, and its tenants: small tables that claims read and operators change."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Executable, Integer, Text, bindparam, cast, column, delete, func, literal, select, true
from sqlalchemy.dialects.postgresql import insert

from runqueue.schema.tables import Tables
from runqueue.statements.parts import CLOCK, LEASED, array, json_text


@cache
def all_rules(t: Tables) -> Executable:
    """Every rule, its value as JSON text."""
    return select(t.rules.c.name, cast(t.rules.c.value_json, Text).label("value")).order_by(t.rules.c.name)


@cache
def settle_rules(t: Tables) -> Executable:
    """Store the rules `names` with `values`, those that have no value yet."""
    given = (
        func.unnest(array("names", Text()), array("values", Text()))
        .table_valued(column("name", Text), column("value", Text), name="g")
        .render_derived()
    )
    rows = select(given.c.name, json_text(given.c.value))
    return insert(t.rules).from_select(["name", "value_json"], rows).on_conflict_do_nothing()


@cache
def set_rule(t: Tables) -> Executable:
    """Store the rule `name`."""
    value = json_text(bindparam("value", type_=Text))
    row = insert(t.rules).values(name=bindparam("name", type_=Text), value_json=value)
    return row.on_conflict_do_update(index_elements=["name"], set_={"value_json": value, "updated_at": CLOCK})


@cache
def unset_rule(t: Tables) -> Executable:
    """Remove the rule `name`."""
    return delete(t.rules).where(t.rules.c.name == bindparam("name", type_=Text))


@cache
def set_tenant(t: Tables, what: tuple[str, ...]) -> Executable:
    """Store the columns `what` of a tenant, its `weight`, its `cap` or both; null for the default's."""
    values = {name: bindparam(name, type_=t.tenants.c[name].type) for name in what}
    row = insert(t.tenants).values(tenant_id=bindparam("tenant", type_=Text), **values)
    return row.on_conflict_do_update(index_elements=["tenant_id"], set_=values)


@cache
def tenants(t: Tables) -> Executable:
    """Tenants that have a row or runs in flight, above the name `after`, at most `batch`."""
    after, batch = bindparam("after", type_=Text), bindparam("batch", type_=Integer)
    flying = (
        select(t.runs.c.tenant_id, func.count().label("in_flight"))
        .where(t.runs.c.status == LEASED)
        .group_by(t.runs.c.tenant_id)
        .subquery("flying")
    )
    name = func.coalesce(t.tenants.c.tenant_id, flying.c.tenant_id).label("tenant_id")
    both = (
        select(
            name,
            t.tenants.c.weight,
            t.tenants.c.cap,
            func.coalesce(flying.c.in_flight, 0).label("in_flight"),
            func.coalesce(t.tenants.c.usage, literal(0.0)).label("usage"),
            t.tenants.c.used_at,
        )
        .select_from(t.tenants.join(flying, flying.c.tenant_id == t.tenants.c.tenant_id, full=True))
        .subquery("both")
    )
    return select(both).where(both.c.tenant_id > after).order_by(both.c.tenant_id).limit(batch)


@cache
def tenant(t: Tables) -> Executable:
    """The tenant of that name, whether it has a row or not."""
    given = select(bindparam("tenant", type_=Text).label("tenant_id")).subquery("given")
    flying = (
        select(func.count().label("in_flight"))
        .where(t.runs.c.status == LEASED, t.runs.c.tenant_id == given.c.tenant_id)
        .correlate(given)
        .lateral("flying")
    )
    return select(
        given.c.tenant_id,
        t.tenants.c.weight,
        t.tenants.c.cap,
        flying.c.in_flight,
        func.coalesce(t.tenants.c.usage, literal(0.0)).label("usage"),
        t.tenants.c.used_at,
    ).select_from(given.join(flying, true()).outerjoin(t.tenants, t.tenants.c.tenant_id == given.c.tenant_id))
