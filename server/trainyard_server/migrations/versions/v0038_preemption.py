"""Runs that are asked to give way, and how often replicas save."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "preemption_requests",
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("saved", sa.BigInteger(), nullable=False),
        sa.Column("for_job", sa.Integer(), nullable=True),
        sa.Column("for_agent", sa.String(128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_preemption_requests_job_key"),
        sa.PrimaryKeyConstraint("run_id", name="pk_preemption_requests"),
    )
    op.add_column("replicas", sa.Column("durable_every_s", sa.Double(), nullable=True))
    op.create_index("ix_preemption_requests_job_key", "preemption_requests", ["job_key"])
