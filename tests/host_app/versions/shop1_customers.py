"""Customers."""

import sqlalchemy as sa
from alembic import op

revision = "shop1"
down_revision = None
branch_labels = ("shop",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "customers",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(80), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_customers"),
    )


def downgrade() -> None:
    op.drop_table("customers")
