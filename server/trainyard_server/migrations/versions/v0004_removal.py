"""Removal of jobs and of their logs: ids of deleted jobs, which are never used again, and when a log was removed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deleted_jobs",
        sa.Column("key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.String(length=128), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_by", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_deleted_jobs")),
        sa.UniqueConstraint("project", "job_id", name=op.f("uq_deleted_jobs_project_job_id")),
    )
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("log_removed_at", sa.DateTime(timezone=True), nullable=True))
