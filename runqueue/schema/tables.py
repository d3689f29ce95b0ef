"""The tables as SQLAlchemy Core sees them. The migrations are the authority; a test compares the two."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from runqueue.errors import InvalidRun

SCHEMA_VERSION = 2
"""What this release's migrations make; `migrate` records it as the comment of `agent_runs`."""

NEEDED_VERSION = SCHEMA_VERSION
"""The oldest that this release's code works with: lower where the newest revisions go after the new code."""

COMMENT = "runqueue schema "

READABLE = (
    "least(available_at, locked_until, deadline_at, cancel_requested_at, created_at, updated_at, finished_at) "
    ">= '1970-01-01 00:00:00+00' and "
    "greatest(available_at, locked_until, deadline_at, cancel_requested_at, created_at, updated_at, finished_at) "
    "< '9999-01-01 00:00:00+00'"
)

RUN_CHECKS = {
    "status": "status in ('pending', 'leased', 'done', 'dead', 'cancelled')",
    "leased": "(status = 'leased') = (locked_by is not null) and (locked_by is null) = (locked_until is null)",
    "finished": "(status in ('done', 'dead', 'cancelled')) = (finished_at is not null)",
    "attempts": "max_attempts > 0 and attempts between 0 and max_attempts",
    "attempts_left": "attempts < max_attempts or status <> 'pending'",
    "tokens": "settled_token between 0 and fencing_token",
    "on_lost": "on_lost in ('retry', 'fail')",
    "times": READABLE,
}

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")


def schema_name(name: str) -> str:
    """Check a schema's name; it also names the NOTIFY channel, which PostgreSQL cuts at 63 bytes without a word."""
    if not isinstance(name, str) or not _SCHEMA_NAME.fullmatch(name) or name.startswith("pg_"):
        raise InvalidRun("schema", f"must match {_SCHEMA_NAME.pattern} and not start with pg_, not {name!r}")
    return name


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables of one install. Statements take this value, and are built once for it."""

    schema: str
    metadata: MetaData
    runs: Table
    history: Table
    events: Table
    checkpoints: Table
    keys: Table
    pauses: Table
    rules: Table
    tenants: Table


def _time(name: str, *, nullable: bool = True, now: bool = False) -> Column[object]:
    default = text("clock_timestamp()") if now else None
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


def _run_columns() -> list[Column[object]]:
    number = {"nullable": False, "server_default": text("0")}
    return [
        Column("id", Uuid, primary_key=True),
        Column("tenant_id", Text, nullable=False),
        Column("queue", Text, nullable=False, server_default=text("'default'")),
        Column("kind", Text, nullable=False),
        Column("status", Text, nullable=False, server_default=text("'pending'")),
        Column("priority", Integer, **number),  # type: ignore[arg-type]  # shared keyword arguments
        Column("attempts", Integer, **number),  # type: ignore[arg-type]
        Column("max_attempts", Integer, nullable=False, server_default=text("3")),
        _time("available_at", nullable=False, now=True),
        _time("locked_until"),
        Column("locked_by", Text),
        Column("fencing_token", BigInteger, **number),  # type: ignore[arg-type]
        Column("settled_token", BigInteger, **number),  # type: ignore[arg-type]
        _time("cancel_requested_at"),
        Column("cancel_reason", Text),
        Column("budget_json", JSONB),
        Column("input_json", JSONB),
        Column("result_json", JSONB),
        Column("error_code", Text),
        Column("error_message", Text),
        Column("idempotency_key", Text),
        Column("parent_id", Uuid),
        Column("on_lost", Text, nullable=False, server_default=text("'retry'")),
        _time("deadline_at"),
        Column("event_seq", BigInteger, **number),  # type: ignore[arg-type]
        Column("checkpoint_seq", BigInteger, **number),  # type: ignore[arg-type]
        _time("created_at", nullable=False, now=True),
        _time("updated_at", nullable=False, now=True),
        _time("finished_at"),
        _time("leased_at"),
        Column("spent", Double, **number),  # type: ignore[arg-type]
    ]


RUN_COLUMNS = tuple(column.name for column in _run_columns())


def _history_columns() -> list[Column[object]]:
    columns = [Column(c.name, c.type, nullable=c.nullable) for c in _run_columns()]
    for column in columns:
        if column.name in {"id", "finished_at"}:
            column.primary_key, column.nullable = True, False
    return columns


@cache
def tables(schema: str) -> Tables:
    """The tables of the install in `schema`. Raises InvalidRun for a name that is not a plain identifier."""
    metadata = MetaData(schema=schema_name(schema))
    runs = Table(
        "agent_runs",
        metadata,
        *_run_columns(),
        *(CheckConstraint(rule, name=f"agent_runs_{name}_check") for name, rule in RUN_CHECKS.items()),
        comment=f"{COMMENT}{SCHEMA_VERSION}",
        postgresql_with={"fillfactor": "70"},
    )
    pending, leased = text("status = 'pending'"), text("status = 'leased'")
    Index(
        "agent_runs_claim_idx",
        runs.c.queue,
        runs.c.kind,
        runs.c.priority.desc(),
        runs.c.available_at,
        runs.c.id,
        postgresql_where=pending,
    )
    Index("agent_runs_leased_idx", runs.c.id, postgresql_where=leased)
    history = Table("agent_runs_history", metadata, *_history_columns(), postgresql_partition_by="RANGE (finished_at)")
    events = Table(
        "agent_run_events",
        metadata,
        Column("run_id", Uuid, primary_key=True),
        Column("seq", BigInteger, primary_key=True, autoincrement=False),
        Column("type", Text, nullable=False),
        Column("data_json", JSONB),
        _time("created_at", nullable=False, now=True),
    )
    checkpoints = Table(
        "agent_run_checkpoints",
        metadata,
        Column("run_id", Uuid, primary_key=True),
        Column("seq", BigInteger, primary_key=True, autoincrement=False),
        Column("fencing_token", BigInteger, nullable=False),
        Column("state_json", JSONB),
        _time("created_at", nullable=False, now=True),
    )
    keys = Table(
        "agent_run_keys",
        metadata,
        Column("tenant_id", Text, primary_key=True),
        Column("kind", Text, primary_key=True),
        Column("idempotency_key", Text, primary_key=True),
        Column("run_id", Uuid, nullable=False),
        Column("input_digest", Text, nullable=False),
        _time("created_at", nullable=False, now=True),
    )
    pauses = Table(
        "agent_run_pauses",
        metadata,
        Column("queue", Text, primary_key=True),
        Column("kind", Text, primary_key=True, server_default=text("''")),
        Column("reason", Text),
        _time("created_at", nullable=False, now=True),
    )
    rules = Table(
        "agent_run_rules",
        metadata,
        Column("name", Text, primary_key=True),
        Column("value_json", JSONB, nullable=False),
        _time("updated_at", nullable=False, now=True),
    )
    tenants = Table(
        "agent_run_tenants",
        metadata,
        Column("tenant_id", Text, primary_key=True),
        Column("weight", Double),
        Column("cap", Integer),
        Column("usage", Double, nullable=False, server_default=text("0")),
        _time("used_at"),
        Column("cost", Double),
        CheckConstraint("weight > 0 and weight < 'Infinity'", name="agent_run_tenants_weight_check"),
        CheckConstraint("cap >= 0", name="agent_run_tenants_cap_check"),
        CheckConstraint("usage >= 0 and usage < 'Infinity'", name="agent_run_tenants_usage_check"),
        CheckConstraint("cost >= 0 and cost < 'Infinity'", name="agent_run_tenants_cost_check"),
        postgresql_with={"fillfactor": "70"},
    )
    return Tables(schema, metadata, runs, history, events, checkpoints, keys, pauses, rules, tenants)
