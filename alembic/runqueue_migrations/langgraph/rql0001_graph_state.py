"""Graph state: checkpoints, the values of their channels, and writes of tasks.

Deploy: before the new code. Locks: none that anyone else can hold; all tables are new.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "rql0001"
down_revision = None
branch_labels = ("runqueue_langgraph",)
depends_on = ("rq0001",)
applies = "before"

PLACE = ("tenant_id", "thread_id", "checkpoint_ns")


def _place() -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in PLACE]


def _id(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(collation="C"), nullable=nullable)


def upgrade() -> None:
    """Create the tables in the install's own schema."""
    schema = op.get_context().opts.get("runqueue_schema", "runqueue")
    now = sa.text("clock_timestamp()")
    op.create_table(
        "agent_graph_checkpoints",
        *_place(),
        _id("checkpoint_id"),
        _id("parent_id", nullable=True),
        sa.Column("run_id", sa.Text),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("versions_json", JSONB, nullable=False),
        sa.Column("metadata_json", JSONB, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=now),
        sa.PrimaryKeyConstraint(*PLACE, "checkpoint_id", name="agent_graph_checkpoints_pkey"),
        schema=schema,
    )
    op.create_index(
        "agent_graph_checkpoints_run_idx",
        "agent_graph_checkpoints",
        ["run_id"],
        schema=schema,
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_table(
        "agent_graph_values",
        *_place(),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary),
        sa.PrimaryKeyConstraint(*PLACE, "channel", "version", name="agent_graph_values_pkey"),
        schema=schema,
    )
    op.create_table(
        "agent_graph_writes",
        *_place(),
        _id("checkpoint_id"),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("idx", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("task_path", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint(*PLACE, "checkpoint_id", "task_id", "idx", name="agent_graph_writes_pkey"),
        schema=schema,
    )
    op.create_index(
        "agent_graph_writes_asked_idx",
        "agent_graph_writes",
        ["tenant_id", "thread_id"],
        schema=schema,
        postgresql_where=sa.text("channel in ('__interrupt__', '__resume__')"),
    )


def downgrade() -> None:
    """Drop the tables, and all graph state with them."""
    schema = op.get_context().opts.get("runqueue_schema", "runqueue")
    for name in ("writes", "values", "checkpoints"):
        op.drop_table(f"agent_graph_{name}", schema=schema)
