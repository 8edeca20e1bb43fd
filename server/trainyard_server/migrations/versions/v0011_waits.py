"""The reason why an engine has not started a replica yet."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("replicas") as replicas:
        replicas.add_column(sa.Column("waits", sa.Text(), nullable=False, server_default=""))
