"""The runtime of a run, and the reason of the agent that chose it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("runtime", sa.String(length=32), nullable=False, server_default=""))
        runs.add_column(sa.Column("runtime_reason", sa.Text(), nullable=False, server_default=""))
