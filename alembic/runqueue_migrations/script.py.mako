"""${message}

Deploy: before | after the new code. Locks: what it takes, and for how long.
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}
applies = "before"  # or "after": once no worker of the old code is left


def upgrade() -> None:
    """Apply."""
    schema = op.get_context().opts.get("runqueue_schema", "runqueue")
    ${upgrades if upgrades else "raise AssertionError(schema)"}


def downgrade() -> None:
    """Undo."""
    schema = op.get_context().opts.get("runqueue_schema", "runqueue")
    ${downgrades if downgrades else "raise AssertionError(schema)"}
