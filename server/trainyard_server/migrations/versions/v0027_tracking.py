"""What programs log through MLflow's tracking API."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "logged_metrics",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("points", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_logged_metrics_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", name="pk_logged_metrics"),
    )
    op.create_table(
        "tracked_runs",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_tracked_runs_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", name="pk_tracked_runs"),
    )
