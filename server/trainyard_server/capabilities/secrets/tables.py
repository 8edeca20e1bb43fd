"""Table of secrets."""

from datetime import datetime

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_server.storage.db.base.columns import Table


class SecretRow(Table):
    """A secret of a project, its value encrypted."""

    __tablename__ = "secrets"

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    ciphertext: Mapped[str] = mapped_column(Text)
    set_by: Mapped[str] = mapped_column(String(128))
    set_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]  # when a run was last given it
    last_used_by: Mapped[str] = mapped_column(String(128), default="")  # the job of that run
