"""The words that statements are made of."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Float,
    Interval,
    Select,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import array as pg_array
from sqlalchemy.sql import FromClause
from sqlalchemy.sql.selectable import CTE, TableValuedAlias

from runqueue.schema.tables import RUN_COLUMNS, Tables
from runqueue.types import RunStatus

# `statement_timestamp()` is stable, so an index can serve it; `clock_timestamp()` is not, and in WHERE means a scan.
# In SET it is the right one: a statement that waited for a lock must not write a time from before the wait.
STATEMENT_TIME = func.statement_timestamp()
CLOCK = func.clock_timestamp()

JSON_COLUMNS = frozenset({"budget_json", "input_json", "result_json"})


def status(value: RunStatus) -> ColumnElement[str]:
    """A status as an SQL literal."""
    return literal_column(f"'{value.value}'", Text)


_SECOND: ColumnElement[Any] = literal_column("interval '1 second'", Interval())
ONE: ColumnElement[int] = literal_column("1", BigInteger())
NONE: ColumnElement[int] = literal_column("0", BigInteger())
ANY_KIND: ColumnElement[str] = literal_column("''", Text())

PENDING, LEASED, DONE, DEAD, CANCELLED = (status(x) for x in RunStatus)


def seconds(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """An interval of so many seconds."""
    return cast(value, Float(53)) * _SECOND


def in_seconds(interval: ColumnElement[Any]) -> ColumnElement[float]:
    """An interval as a number of seconds."""
    return cast(func.extract("epoch", interval), Float(53))


def in_epoch(moment: ColumnElement[Any]) -> ColumnElement[float]:
    """A time as seconds since 1970."""
    return cast(func.extract("epoch", moment), Float(53))


def array(name: str, of: Any) -> ColumnElement[Any]:
    """A parameter that is one array, whatever its length: one statement text, one plan."""
    return bindparam(name, type_=ARRAY(of))


def leases() -> TableValuedAlias:
    """The parameters `ids` and `tokens` as rows."""
    return (
        func.unnest(array("ids", Uuid()), array("tokens", BigInteger()))
        .table_valued(column("id", Uuid()), column("token", BigInteger()), name="d")
        .render_derived()
    )


def held(t: Tables, given: FromClause) -> list[ColumnElement[bool]]:
    """The fence: the run is leased, and `given` names its newest lease."""
    return [
        t.runs.c.id == func.any(array("ids", Uuid())),
        t.runs.c.id == given.c.id,
        t.runs.c.fencing_token == given.c.token,
        t.runs.c.locked_until.is_not(None),
    ]


def ids_of(cte: CTE) -> ColumnElement[bool]:
    """`any(array(select id from cte))`: exactly these rows, by the primary key, whatever the planner believes."""
    return func.any(func.array(select(cte.c.id).scalar_subquery()))


def joined(cte: CTE) -> ColumnElement[bool]:
    """`any(array[cte.id])`: one probe of the primary key for each row. No other join can serve it.

    A plain join lets a stale estimate choose a scan of the table; together with `ids_of` it looks up all ids for each.
    """
    return func.any(pg_array([cte.c.id]))


def materialized(source: Any, name: str) -> CTE:
    """A CTE that is run once: a LIMIT … SKIP LOCKED that a plan runs twice locks other rows the second time."""
    cte: CTE = source.cte(name).prefix_with("MATERIALIZED")
    return cte


def run_columns(source: FromClause) -> list[ColumnElement[Any]]:
    """All columns of a run, JSON as text: decoding is ours, whatever the application's engine does with JSON."""
    return [
        cast(source.c[name], Text).label(name) if name in JSON_COLUMNS else source.c[name]
        for name in RUN_COLUMNS
        if name in source.c
    ]


def json_text(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """A JSON text as jsonb."""
    return cast(value, JSONB)


def choose(*pairs: tuple[ColumnElement[bool], ColumnElement[Any]], otherwise: Any) -> ColumnElement[Any]:
    """A CASE."""
    return case(*pairs, else_=otherwise)


def lost_delay(attempts: ColumnElement[int]) -> ColumnElement[Any]:
    """min(retry_cap, retry_base·2^(attempts−1)) as an interval; the exponent is clamped, for power() overflows."""
    growth = func.power(
        literal_column("2.0::float8"), func.least(func.greatest(attempts - ONE, NONE), literal_column("30"))
    )
    return seconds(
        func.least(bindparam("retry_cap", type_=Float(53)), bindparam("retry_base", type_=Float(53)) * growth)
    )


def notify(channel: str) -> Select[Any]:
    """A wake-up hint; delivered at commit, equal ones of a transaction only once."""
    return select(func.pg_notify(channel, bindparam("payload", type_=Text)))
