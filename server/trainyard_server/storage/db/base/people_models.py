"""Tables of people: their tokens, their roles, and what they did."""

from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import BigInteger, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_server.storage.db.base.columns import Table

_E = TypeVar("_E", bound=StrEnum)


class UsedTokenRow(Table):
    """A used sign-in code or an ended session, by its digest. Stored until `until`, when it would have expired."""

    __tablename__ = "spent"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    until: Mapped[datetime]


class TokenRow(Table):
    """A token that was made while the server runs, by its digest. Rows of revoked and expired ones stay. `made_with`:
    the id of the token that it was made with, or `single-sign-on`."""

    __tablename__ = "tokens"
    __table_args__ = (Index(None, "owner", "created_at"), Index(None, "made_with"))

    token_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    owner: Mapped[str] = mapped_column(String(128))  # a person, or an agent
    for_agent: Mapped[bool] = mapped_column(default=False)
    description: Mapped[str] = mapped_column(String(256), default="")
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(128))
    made_with: Mapped[str] = mapped_column(String(32), default="")
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]  # within a minute
    revoked_at: Mapped[datetime | None]
    revoked_by: Mapped[str] = mapped_column(String(128), default="")


class MemberRow(Table):
    """A person's role in a project, or in all: `*`."""

    __tablename__ = "members"
    __table_args__ = (Index(None, "name"),)

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    role: Mapped[str] = mapped_column(String(32))
    since: Mapped[datetime]
    given_by: Mapped[str] = mapped_column(String(128))


class AuditRow(Table):
    """A row of the audit: `trainyard_protocol.answers.audit.AuditEntry`. Never changed but by the call itself."""

    __tablename__ = "audit"
    # Each list is the newest first, of all or of one project, actor or action.
    __table_args__ = (
        Index(None, "time"),
        Index(None, "project", "id"),
        Index(None, "actor", "id"),
        Index(None, "action", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    time: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(128))
    credential: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(32))
    action: Mapped[str] = mapped_column(String(128))
    project: Mapped[str] = mapped_column(String(128))
    subject: Mapped[str] = mapped_column(String(256))
    outcome: Mapped[str] = mapped_column(String(16))
    status: Mapped[int]
    address: Mapped[str] = mapped_column(String(64))
    user_agent: Mapped[str] = mapped_column(String(200))
    request_id: Mapped[str] = mapped_column(String(64))
    count: Mapped[int]
