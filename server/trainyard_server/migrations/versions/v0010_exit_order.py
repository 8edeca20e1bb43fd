"""The order of the ends of a run, where its runtime's clock has whole seconds."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("replicas") as replicas:
        replicas.add_column(sa.Column("exit_order", sa.BigInteger(), nullable=False, server_default="0"))
