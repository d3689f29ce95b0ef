"""Tenants and the install's rules; when a run's lease began, and what the run says it has spent.

Deploy: before the new code; the old code runs on. Locks: ACCESS EXCLUSIVE on the runs for the new columns, which are
added without a rewrite or a scan: milliseconds, but behind every open transaction that has used the table.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "rq0002"
down_revision = "rq0001"
branch_labels = None
depends_on = None
applies = "before"

NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    """Add two columns to the runs and their history, and two small tables."""
    schema = op.get_context().opts.get("runqueue_schema", "runqueue")
    for table, default in (("agent_runs", sa.text("0")), ("agent_runs_history", None)):
        op.add_column(table, sa.Column("leased_at", sa.DateTime(timezone=True)), schema=schema)
        # the history's rows get no default later, but those that are there need a value
        spent = sa.Column("spent", sa.Double, nullable=False, server_default=sa.text("0"))
        op.add_column(table, spent, schema=schema)
        if default is None:
            op.alter_column(table, "spent", server_default=None, schema=schema)
    op.create_table(
        "agent_run_rules",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value_json", JSONB, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=NOW),
        sa.PrimaryKeyConstraint("name", name="agent_run_rules_pkey"),
        schema=schema,
    )
    op.create_table(
        "agent_run_tenants",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("weight", sa.Double),
        sa.Column("cap", sa.Integer),
        sa.Column("usage", sa.Double, nullable=False, server_default=sa.text("0")),
        sa.Column("used_at", sa.DateTime(timezone=True)),
        sa.Column("cost", sa.Double),
        sa.PrimaryKeyConstraint("tenant_id", name="agent_run_tenants_pkey"),
        sa.CheckConstraint("weight > 0 and weight < 'Infinity'", name="agent_run_tenants_weight_check"),
        sa.CheckConstraint("cap >= 0", name="agent_run_tenants_cap_check"),
        sa.CheckConstraint("usage >= 0 and usage < 'Infinity'", name="agent_run_tenants_usage_check"),
        sa.CheckConstraint("cost >= 0 and cost < 'Infinity'", name="agent_run_tenants_cost_check"),
        schema=schema,
        postgresql_with={"fillfactor": "70"},
    )
    op.create_table_comment("agent_runs", "runqueue schema 2", schema=schema)


def downgrade() -> None:
    """Undo it; shares, caps and rules are gone."""
    schema = op.get_context().opts.get("runqueue_schema", "runqueue")
    op.create_table_comment("agent_runs", "runqueue schema 1", schema=schema)
    op.drop_table("agent_run_tenants", schema=schema)
    op.drop_table("agent_run_rules", schema=schema)
    for table in ("agent_runs", "agent_runs_history"):
        op.drop_column(table, "spent", schema=schema)
        op.drop_column(table, "leased_at", schema=schema)
