"""Parts of runs on further agents."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("part_of", sa.String(length=32), nullable=True))
        runs.add_column(sa.Column("agents", sa.Integer(), nullable=False, server_default="1"))
        runs.add_column(sa.Column("ready", sa.Boolean(), nullable=False, server_default=sa.false()))
        runs.drop_constraint("uq_runs_job_key_number", type_="unique")
        runs.create_unique_constraint("uq_runs_job_key_number_agent_id", ["job_key", "number", "agent_id"])
    op.create_index("ix_runs_part_of", "runs", ["part_of"])
    op.add_column("replicas", sa.Column("exit_error_s", sa.Double(), nullable=False, server_default="0"))
