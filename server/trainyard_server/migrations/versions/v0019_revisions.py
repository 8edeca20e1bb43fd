"""Revisions: which jobs and agents have changed since the scheduler last looked."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    revisions = op.create_table(
        "revisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("placed", sa.BigInteger(), nullable=False),
        sa.Column("noted", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revisions")),
    )
    op.bulk_insert(revisions, [{"id": 1, "value": 1, "placed": 0, "noted": 0}])
    for table in ("jobs", "agents"):
        op.add_column(table, sa.Column("changed", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index(op.f("ix_jobs_changed"), "jobs", ["changed"])
