"""The digest of each agent's key. Agents of before have none: each gets the first that it sends."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("agents") as agents:
        agents.add_column(sa.Column("key_sha256", sa.String(length=64), nullable=False, server_default=""))
