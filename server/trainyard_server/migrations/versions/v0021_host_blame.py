"""Failures of machines, and why the service drained them."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("failures", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("agents", sa.Column("drain_reason", sa.Text(), nullable=False, server_default=""))
