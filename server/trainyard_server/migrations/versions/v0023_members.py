"""Members of the leases that agents keep by a majority."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("agents") as agents:
        agents.add_column(sa.Column("sent_members", sa.JSON(), nullable=False, server_default="[]"))
        agents.add_column(sa.Column("member_lists", sa.JSON(), nullable=False, server_default="[]"))
