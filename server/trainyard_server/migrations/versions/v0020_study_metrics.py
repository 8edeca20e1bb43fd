"""The metric that a study took from its trials, and other metrics in the files of trials."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("metric", sa.Text(), nullable=False, server_default=""))
    op.add_column("trials", sa.Column("others", sa.JSON(), nullable=True))
