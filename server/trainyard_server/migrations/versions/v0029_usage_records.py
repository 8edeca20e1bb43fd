"""What runs used, kept beyond their jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_records",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.String(length=128), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("gpu_s", sa.Double(), nullable=False),
        sa.Column("idle_gpu_s", sa.Double(), nullable=True),
        sa.Column("wait_s", sa.Double(), nullable=True),
        sa.Column("has_failed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_usage_records"),
    )
    op.create_index("ix_usage_records_by_day", "usage_records", ["day", "project"])
    op.create_index("ix_usage_records_by_end", "usage_records", ["ended_at"])
    op.create_index("ix_runs_ended_at", "runs", ["ended_at"])
