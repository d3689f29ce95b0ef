"""The first schema: runs, their history, events, checkpoints, idempotency keys and pauses.

Deploy: before the new code. Locks: none that anyone else can hold; all tables are new.
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.postgresql import JSONB

revision = "rq0001"
down_revision = None
branch_labels = ("runqueue",)
depends_on = None
applies = "before"

TIMES_ARE_READABLE = (
    "least(available_at, locked_until, deadline_at, cancel_requested_at, created_at, updated_at, finished_at) "
    ">= '1970-01-01 00:00:00+00' and "
    "greatest(available_at, locked_until, deadline_at, cancel_requested_at, created_at, updated_at, finished_at) "
    "< '9999-01-01 00:00:00+00'"
)

CHECKS = {
    "status": "status in ('pending', 'leased', 'done', 'dead', 'cancelled')",
    "leased": "(status = 'leased') = (locked_by is not null) and (locked_by is null) = (locked_until is null)",
    "finished": "(status in ('done', 'dead', 'cancelled')) = (finished_at is not null)",
    "attempts": "max_attempts > 0 and attempts between 0 and max_attempts",
    "attempts_left": "attempts < max_attempts or status <> 'pending'",
    "tokens": "settled_token between 0 and fencing_token",
    "on_lost": "on_lost in ('retry', 'fail')",
    "times": TIMES_ARE_READABLE,
}


def _time(name: str, *, nullable: bool = True, now: bool = False) -> sa.Column[object]:
    default = sa.text("clock_timestamp()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)


def _number(name: str, kind: type[sa.Integer], default: str = "0") -> sa.Column[object]:
    return sa.Column(name, kind, nullable=False, server_default=sa.text(default))


def _run_columns(*, defaults: bool) -> list[sa.Column[object]]:
    columns: list[sa.Column[object]] = [
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False, server_default=sa.text("'default'")),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'pending'")),
        _number("priority", sa.Integer),
        _number("attempts", sa.Integer),
        _number("max_attempts", sa.Integer, "3"),
        _time("available_at", nullable=False, now=True),
        _time("locked_until"),
        sa.Column("locked_by", sa.Text),
        _number("fencing_token", sa.BigInteger),
        _number("settled_token", sa.BigInteger),
        _time("cancel_requested_at"),
        sa.Column("cancel_reason", sa.Text),
        sa.Column("budget_json", JSONB),
        sa.Column("input_json", JSONB),
        sa.Column("result_json", JSONB),
        sa.Column("error_code", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("parent_id", sa.Uuid),
        sa.Column("on_lost", sa.Text, nullable=False, server_default=sa.text("'retry'")),
        _time("deadline_at"),
        _number("event_seq", sa.BigInteger),
        _number("checkpoint_seq", sa.BigInteger),
        _time("created_at", nullable=False, now=True),
        _time("updated_at", nullable=False, now=True),
        _time("finished_at", nullable=defaults),
    ]
    if not defaults:
        for column in columns:
            column.server_default = None
    return columns


def upgrade() -> None:
    """Create everything in the install's own schema."""
    schema = op.get_context().opts.get("runqueue_schema", "runqueue")
    # where the schema is there, the statement would still need the right to make one
    if context.is_offline_mode() or not sa.inspect(op.get_bind()).has_schema(schema):
        op.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
    op.create_table(
        "agent_runs",
        *_run_columns(defaults=True),
        sa.PrimaryKeyConstraint("id", name="agent_runs_pkey"),
        *(sa.CheckConstraint(rule, name=f"agent_runs_{name}_check") for name, rule in CHECKS.items()),
        schema=schema,
        comment="runqueue schema 1",
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "agent_runs_claim_idx",
        "agent_runs",
        ["queue", "kind", sa.text("priority DESC"), "available_at", "id"],
        schema=schema,
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "agent_runs_leased_idx",
        "agent_runs",
        ["id"],
        schema=schema,
        postgresql_where=sa.text("status = 'leased'"),
    )
    op.create_table(
        "agent_runs_history",
        *_run_columns(defaults=False),
        sa.PrimaryKeyConstraint("id", "finished_at", name="agent_runs_history_pkey"),
        schema=schema,
        postgresql_partition_by="RANGE (finished_at)",
    )
    op.create_table(
        "agent_run_events",
        sa.Column("run_id", sa.Uuid, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("data_json", JSONB),
        _time("created_at", nullable=False, now=True),
        sa.PrimaryKeyConstraint("run_id", "seq", name="agent_run_events_pkey"),
        schema=schema,
    )
    op.create_table(
        "agent_run_checkpoints",
        sa.Column("run_id", sa.Uuid, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("fencing_token", sa.BigInteger, nullable=False),
        sa.Column("state_json", JSONB),
        _time("created_at", nullable=False, now=True),
        sa.PrimaryKeyConstraint("run_id", "seq", name="agent_run_checkpoints_pkey"),
        schema=schema,
    )
    op.create_table(
        "agent_run_keys",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("run_id", sa.Uuid, nullable=False),
        sa.Column("input_digest", sa.Text, nullable=False),
        _time("created_at", nullable=False, now=True),
        sa.PrimaryKeyConstraint("tenant_id", "kind", "idempotency_key", name="agent_run_keys_pkey"),
        schema=schema,
    )
    op.create_table(
        "agent_run_pauses",
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("reason", sa.Text),
        _time("created_at", nullable=False, now=True),
        sa.PrimaryKeyConstraint("queue", "kind", name="agent_run_pauses_pkey"),
        schema=schema,
    )


def downgrade() -> None:
    """Drop the tables; the schema stays, it may hold the version table and the host's own objects."""
    schema = op.get_context().opts.get("runqueue_schema", "runqueue")
    for name in ("pauses", "keys", "checkpoints", "events"):
        op.drop_table(f"agent_run_{name}", schema=schema)
    op.drop_table("agent_runs_history", schema=schema)
    op.drop_table("agent_runs", schema=schema)
