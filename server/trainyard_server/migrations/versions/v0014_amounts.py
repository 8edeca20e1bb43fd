"""Amounts of each replica beside its CPU numbers and device ids. Of older runs the types of devices are not known."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("replicas") as replicas:
        replicas.add_column(sa.Column("vcpus", sa.Integer(), nullable=False, server_default="0"))
        replicas.add_column(
            sa.Column("accelerator_type", sa.String(length=64), nullable=False, server_default="")
        )
        replicas.add_column(sa.Column("accelerator_count", sa.Integer(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE replicas SET vcpus = json_array_length(cpus), accelerator_count = json_array_length(gpus)"
    )
