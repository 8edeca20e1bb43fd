"""An index of the owners of a project's jobs, for people who do not see all projects."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_jobs_by_project_and_owner", "jobs", ["project", "owner"])
