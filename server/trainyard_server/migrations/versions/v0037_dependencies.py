"""What jobs start after."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_dependencies",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("after_key", sa.Integer(), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("metric", sa.String(100), nullable=False),
        sa.Column("fulfilled", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_dependencies_job_key"),
        sa.PrimaryKeyConstraint("job_key", "position", name="pk_job_dependencies"),
    )
    op.create_index("ix_job_dependencies_after_key", "job_dependencies", ["after_key"])
