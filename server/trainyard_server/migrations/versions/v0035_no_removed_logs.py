"""Logs are no longer removed apart from their jobs."""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_index("ix_jobs_by_removed_log")
        jobs.drop_column("log_removed_at")
