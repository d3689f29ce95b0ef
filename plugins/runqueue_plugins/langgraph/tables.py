"""The tables of graph state, in the schema of the install. The migration is the authority; a test compares the two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import Column, DateTime, Index, Integer, LargeBinary, MetaData, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

ASKED_OR_ANSWERED = "channel in ('__interrupt__', '__resume__')"


@dataclass(frozen=True, eq=False)
class GraphTables:
    """Checkpoints without their channels' values; those values, one row per version; writes of tasks not yet applied.

    `tenant_id` leads all keys: a thread belongs to a tenant, and no run reaches one of another's.
    """

    metadata: MetaData
    checkpoints: Table
    values: Table
    writes: Table


def _sorted_as_text(name: str, *, primary_key: bool = False) -> Column[str]:
    # ids are compared by LangGraph as Python compares strings, whatever the database's collation
    return Column(name, Text(collation="C"), primary_key=primary_key)


def _place() -> list[Column[str]]:
    names = ("tenant_id", "thread_id", "checkpoint_ns")
    return [Column(name, Text, primary_key=True) for name in names]


@cache
def graph_tables(schema: str) -> GraphTables:
    """The tables of the install in `schema`."""
    metadata = MetaData(schema=schema)
    checkpoints = Table(
        "agent_graph_checkpoints",
        metadata,
        *_place(),
        _sorted_as_text("checkpoint_id", primary_key=True),
        _sorted_as_text("parent_id"),
        Column("run_id", Text),
        Column("type", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("versions_json", JSONB, nullable=False),
        Column("metadata_json", JSONB, nullable=False),
        Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    )
    run_id = checkpoints.c.run_id
    Index("agent_graph_checkpoints_run_idx", run_id, postgresql_where=run_id.is_not(None))
    values = Table(
        "agent_graph_values",
        metadata,
        *_place(),
        Column("channel", Text, primary_key=True),
        Column("version", Text, primary_key=True),
        Column("type", Text, nullable=False),
        Column("body", LargeBinary),
    )
    writes = Table(
        "agent_graph_writes",
        metadata,
        *_place(),
        _sorted_as_text("checkpoint_id", primary_key=True),
        Column("task_id", Text, primary_key=True),
        Column("idx", Integer, primary_key=True, autoincrement=False),
        Column("task_path", Text, nullable=False, server_default=text("''")),
        Column("channel", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    Index(
        "agent_graph_writes_asked_idx",
        writes.c.tenant_id,
        writes.c.thread_id,
        postgresql_where=text(ASKED_OR_ANSWERED),
    )
    return GraphTables(metadata, checkpoints, values, writes)
