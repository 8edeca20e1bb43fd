"""Steps, stalls and the ends of logs of replicas; what several server processes must know; leases."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("replicas") as replicas:
        replicas.add_column(sa.Column("log_lines", sa.Integer(), nullable=True))
        replicas.add_column(sa.Column("log_sha256", sa.String(length=64), nullable=False, server_default=""))
        replicas.add_column(sa.Column("log_kept", sa.Integer(), nullable=True))
        replicas.add_column(sa.Column("first_step", sa.BigInteger(), nullable=True))
        replicas.add_column(sa.Column("step", sa.BigInteger(), nullable=True))
        replicas.add_column(sa.Column("steps", sa.BigInteger(), nullable=True))
        replicas.add_column(sa.Column("step_at", sa.DateTime(timezone=True), nullable=True))
        replicas.add_column(sa.Column("durable_step", sa.BigInteger(), nullable=True))
        replicas.add_column(sa.Column("durable_at", sa.DateTime(timezone=True), nullable=True))
        replicas.add_column(sa.Column("stall", sa.JSON(), nullable=True))
        replicas.add_column(sa.Column("stacks", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("agents") as agents:
        agents.add_column(sa.Column("heard", sa.Integer(), nullable=False, server_default="0"))
        agents.add_column(sa.Column("sent_version", sa.String(length=32), nullable=False, server_default=""))
        agents.add_column(sa.Column("sent_lease_s", sa.Double(), nullable=True))
        agents.add_column(sa.Column("leftovers", sa.JSON(), nullable=False, server_default="[]"))
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("beat", sa.Integer(), nullable=False),
        sa.Column("ttl_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "installation",
        sa.Column("installation_id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("installation_id", name=op.f("pk_installation")),
    )
