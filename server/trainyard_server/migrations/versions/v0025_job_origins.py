"""Origins of jobs, and what runs have resolved."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_origins",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("diff", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_origins_job_key"),
        sa.PrimaryKeyConstraint("job_key", name="pk_job_origins"),
    )
    op.add_column("runs", sa.Column("has_resolved", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("runs", sa.Column("resolved", sa.Text(), nullable=False, server_default=""))
