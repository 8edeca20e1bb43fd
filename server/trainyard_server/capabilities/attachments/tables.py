"""Table of attachments to replicas."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_server.storage.db.base.columns import Table


class AttachmentRow(Table):
    """An attachment to a replica, while its server says every half minute that it goes on. `server_url` is where the
    other servers on the database reach that one; "": there is no other. `joined`: its caller has come."""

    __tablename__ = "attachments"
    __table_args__ = (Index(None, "agent_id"),)

    attachment_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    agent_id: Mapped[str] = mapped_column(String(128))
    run_id: Mapped[str] = mapped_column(String(32))
    task: Mapped[str] = mapped_column(String(64))
    request: Mapped[dict[str, Any]]
    caller: Mapped[str] = mapped_column(String(128))
    server_url: Mapped[str] = mapped_column(String(255))
    alive_until: Mapped[datetime]
    joined: Mapped[bool] = mapped_column(default=False)
