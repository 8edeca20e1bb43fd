"""Indexes for what was a scan of all jobs or runs: a project's list by state too, removed logs, live runs."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_NO_TRIAL = sa.text("study_key IS NULL")
_LOG_REMOVED = sa.text("log_removed_at IS NOT NULL")


def upgrade() -> None:
    for name, columns, condition in (
        ("project_and_key", ["project", "key", "state", "job_id", "created_at", "study_key"], _NO_TRIAL),
        ("project_and_state", ["project", "state", "key", "study_key"], _NO_TRIAL),
        ("removed_log", ["log_removed_at", "project"], _LOG_REMOVED),
    ):
        op.create_index(
            f"ix_jobs_by_{name}", "jobs", columns, sqlite_where=condition, postgresql_where=condition
        )
    op.create_index(op.f("ix_runs_state"), "runs", ["state"])
