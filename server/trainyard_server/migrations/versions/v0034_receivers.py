"""The receiver of each notification, by which those that wait are in turns."""

import sqlalchemy as sa
from alembic import op

from trainyard_server.domain.notifications.turns import receiver_of

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("notifications", sa.Column("receiver", sa.Text(), nullable=False, server_default=""))
    columns = [sa.column(name, sa.Text()) for name in ("address", "receiver", "state")]
    table = sa.table("notifications", *columns)
    waiting = table.c.state == "pending"
    for address in op.get_bind().scalars(sa.select(table.c.address).where(waiting).distinct()).all():
        rows = sa.update(table).where(waiting, table.c.address == address)
        op.get_bind().execute(rows.values(receiver=receiver_of(address)))
