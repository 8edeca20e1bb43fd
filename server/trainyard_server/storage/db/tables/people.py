"""People: their tokens, of which only digests are stored, and their roles in projects."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import delete, select, update

from trainyard_server.domain.access.permissions import Role
from trainyard_server.storage.db.base.people_models import MemberRow, TokenRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer


def digest_of(secret: str) -> str:
    """The digest of a token. Tokens are 256 random bits, so a plain hash cannot be inverted."""
    return hashlib.sha256(secret.encode()).hexdigest()


def token_by_secret(reader: Reader, secret: str) -> TokenRow | None:
    return reader.session.scalar(select(TokenRow).filter_by(digest=digest_of(secret)))


def token(reader: Reader, token_id: str) -> TokenRow | None:
    return reader.session.get(TokenRow, token_id)


def tokens(reader: Reader, owner: str | None, limit: int) -> Sequence[TokenRow]:
    """The tokens of an owner, or of all, the newest first."""
    rows = select(TokenRow).order_by(TokenRow.created_at.desc(), TokenRow.token_id).limit(limit)
    return reader.session.scalars(rows if owner is None else rows.filter_by(owner=owner)).all()


def made_with(reader: Reader, token_id: str) -> Sequence[TokenRow]:
    """The tokens that were made with a token, and with those, the newest first."""
    made = select(TokenRow.token_id).where(TokenRow.made_with == token_id).cte("made", recursive=True)
    further = select(TokenRow.token_id).join(made, TokenRow.made_with == made.c.token_id)
    chosen = TokenRow.token_id.in_(select(made.union(further).c.token_id))
    rows = select(TokenRow).where(chosen).order_by(TokenRow.created_at.desc(), TokenRow.token_id)
    return reader.session.scalars(rows).all()


def has_agent_token(reader: Reader, name: str, since: datetime) -> bool:
    """Whether a token of agents of that name was made since then, and not revoked."""
    rows = select(TokenRow.token_id).filter_by(owner=name, for_agent=True, revoked_at=None)
    return reader.session.scalars(rows.where(TokenRow.created_at >= since).limit(1)).first() is not None


def roles_of(reader: Reader, name: str) -> Mapping[str, Role]:
    """A person's role by project."""
    rows = select(MemberRow.project, MemberRow.role).filter_by(name=name)
    return {project: Role(role) for project, role in reader.session.execute(rows)}


def members(reader: Reader, project: str) -> Sequence[MemberRow]:
    return reader.session.scalars(select(MemberRow).filter_by(project=project).order_by(MemberRow.name)).all()


def projects(reader: Reader) -> Sequence[str]:
    """Every project with members."""
    return reader.session.scalars(select(MemberRow.project).distinct().order_by(MemberRow.project)).all()


def add_token(writer: Writer, row: TokenRow) -> None:
    writer.session.add(row)


def mark_used(writer: Writer, token_id: str, now: datetime) -> None:
    writer.session.execute(update(TokenRow).filter_by(token_id=token_id).values(last_used_at=now))


def revoke(writer: Writer, token_ids: Collection[str], by: str, now: datetime) -> None:
    """Revoke the tokens. Revoked ones keep their first time."""
    rows = update(TokenRow).filter_by(revoked_at=None).where(TokenRow.token_id.in_(token_ids))
    writer.session.execute(rows.values(revoked_at=now, revoked_by=by))


def revoke_agent_tokens(writer: Writer, owner: str, by: str, now: datetime) -> None:
    rows = update(TokenRow).filter_by(owner=owner, for_agent=True, revoked_at=None)
    writer.session.execute(rows.values(revoked_at=now, revoked_by=by))


def set_role(writer: Writer, project: str, name: str, role: Role, by: str, now: datetime) -> None:
    writer.session.merge(MemberRow(project=project, name=name, role=role.value, since=now, given_by=by))


def remove_role(writer: Writer, project: str, name: str) -> bool:
    """Whether there was one."""
    row = writer.session.get(MemberRow, (project, name))
    if row is None:
        return False
    writer.session.execute(delete(MemberRow).filter_by(project=project, name=name))
    return True
