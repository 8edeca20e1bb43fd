"""Transactions that write live rows are counted, where several server processes write."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("revisions") as revisions:
        revisions.add_column(sa.Column("written", sa.BigInteger(), nullable=False, server_default="0"))
