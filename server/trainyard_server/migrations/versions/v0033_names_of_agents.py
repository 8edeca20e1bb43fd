"""The names that agents are given, and those that have not called since a restore."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("given_name", sa.Text(), nullable=False, server_default=""))
    op.add_column("agents", sa.Column("restored", sa.Boolean(), nullable=False, server_default="0"))
