"""Attachments to replicas: commands beside their programs, and connections to their ports."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attachments",
        sa.Column("attachment_id", sa.String(length=32), nullable=False),
        sa.Column("agent_id", sa.String(length=128), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("caller", sa.String(length=128), nullable=False),
        sa.Column("server_url", sa.String(length=255), nullable=False),
        sa.Column("alive_until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("attachment_id", name="pk_attachments"),
    )
    op.create_index("ix_attachments_agent_id", "attachments", ["agent_id"])
