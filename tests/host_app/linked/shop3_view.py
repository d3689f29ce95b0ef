"""Runs by tenant, for the shop's reports: it needs runqueue's first tables, so it comes after them."""

from alembic import op
from sqlalchemy.schema import DDL

revision = "shop3"
down_revision = "shop2"
branch_labels = None
depends_on = ("rq0001",)


def upgrade() -> None:
    schema = op.get_context().opts["runqueue_schema"]
    op.execute(
        DDL("create view runs_by_tenant as select tenant_id, count(*) from %(s)s.agent_runs group by 1", {"s": schema})
    )


def downgrade() -> None:
    op.execute("drop view runs_by_tenant")
