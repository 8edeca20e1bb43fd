"""Agents that are given no new run, and agents that were removed."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("agents") as agents:
        agents.add_column(sa.Column("draining", sa.Boolean(), nullable=False, server_default="0"))
        agents.add_column(sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True))
