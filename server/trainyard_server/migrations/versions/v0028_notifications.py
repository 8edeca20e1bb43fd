"""Notification channels, and notifications that wait or were sent."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notification_channels",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("transport", sa.String(length=16), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name="pk_notification_channels"),
    )
    op.create_table(
        "notices",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_notices_job_key"),
        sa.PrimaryKeyConstraint("key", name="pk_notices"),
    )
    op.create_table(
        "metric_alerts",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("metric", sa.String(length=100), nullable=False),
        sa.Column("operator", sa.String(length=2), nullable=False),
        sa.Column("bound", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_metric_alerts_job_key"),
        sa.PrimaryKeyConstraint("job_key", "position", "metric", "operator", "bound", name="pk_metric_alerts"),
    )
    op.create_index("ix_metric_alerts_by_metric", "metric_alerts", ["metric", "job_key"])
    op.create_table(
        "notifications",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.String(length=128), nullable=False),
        sa.Column("event", sa.String(length=200), nullable=False),
        sa.Column("channel", sa.String(length=40), nullable=False),
        sa.Column("transport", sa.String(length=16), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_notifications"),
    )
    op.create_index("ix_notifications_by_state", "notifications", ["state", "next_at"])
    op.create_index("ix_notifications_of_project", "notifications", ["project", "key"])
