"""Buckets and their projects."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "buckets",
        sa.Column("name", sa.String(length=222), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("made_by", sa.String(length=128), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_buckets")),
    )
    op.create_index("ix_buckets_project", "buckets", ["project", "name"])
