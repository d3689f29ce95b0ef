"""Orders, and where customers can be written to."""

import sqlalchemy as sa
from alembic import op

revision = "shop2"
down_revision = "shop1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("customers", sa.Column("email", sa.String))
    op.create_index("ix_customers_email", "customers", ["email"])
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("customer_id", sa.Integer, nullable=False),
        sa.Column("state", sa.Enum("OPEN", "PAID", name="state"), nullable=False),
        sa.ForeignKeyConstraint(["customer_id"], ["customers.id"], name="fk_orders_customer_id"),
        sa.PrimaryKeyConstraint("id", name="pk_orders"),
    )


def downgrade() -> None:
    op.drop_table("orders")
    op.execute("drop type state")
    op.drop_index("ix_customers_email")
    op.drop_column("customers", "email")
