"""The token that each token was made with, and whether the caller of an attachment has come."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("made_with", sa.String(length=32), nullable=False, server_default=""))
    op.create_index("ix_tokens_made_with", "tokens", ["made_with"])
    op.add_column("attachments", sa.Column("joined", sa.Boolean(), nullable=False, server_default=sa.false()))
