"""What programs log through MLflow beside points: tags, parameters in full, inputs, models; where a metric is from."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tracked_values",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=250), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_tracked_values_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", "kind", "name", name="pk_tracked_values"),
    )
    op.create_table(
        "logged_models",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("source", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model_type", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_logged_models_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", name="pk_logged_models"),
    )
    op.add_column("tracked_runs", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("job_metrics", sa.Column("source", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("job_metrics", sa.Column("time_ms", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("job_metrics", sa.Column("run", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("job_metrics", sa.Column("logged", sa.Integer(), nullable=False, server_default="0"))
