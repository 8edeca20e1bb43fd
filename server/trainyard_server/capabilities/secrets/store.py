"""Secrets of projects, as ciphertexts."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, update

from trainyard_server.capabilities.secrets.tables import SecretRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer


def of_project(reader: Reader, project: str) -> Sequence[SecretRow]:
    return reader.session.scalars(select(SecretRow).filter_by(project=project).order_by(SecretRow.name)).all()


def of_all_projects(reader: Reader) -> Sequence[SecretRow]:
    return reader.session.scalars(select(SecretRow).order_by(SecretRow.project, SecretRow.name)).all()


def any_exists(reader: Reader) -> bool:
    """Whether any project has a secret."""
    return reader.session.scalar(select(SecretRow.name).limit(1)) is not None


def missing(reader: Reader, project: str, names: Collection[str]) -> Collection[str]:
    """The names of which the project has no secret."""
    stored = select(SecretRow.name).filter_by(project=project).where(SecretRow.name.in_(names))
    return set(names) - set(reader.session.scalars(stored))


def count(reader: Reader, project: str) -> int:
    return reader.session.scalar(select(func.count()).select_from(SecretRow).filter_by(project=project)) or 0


def save(writer: Writer, project: str, name: str, ciphertext: str, by: str, now: datetime) -> None:
    """Store the secret, in place of an earlier one. Its last use stays."""
    before = writer.session.get(SecretRow, (project, name))
    if before is None:
        writer.session.add(
            SecretRow(project=project, name=name, ciphertext=ciphertext, set_by=by, set_at=now, last_used_by="")
        )
    else:
        before.ciphertext, before.set_by, before.set_at = ciphertext, by, now
    writer.session.flush()


def mark_used(writer: Writer, project: str, names: Collection[str], job_id: str, now: datetime) -> None:
    rows = update(SecretRow).filter_by(project=project).where(SecretRow.name.in_(names))
    writer.session.execute(rows.values(last_used_at=now, last_used_by=job_id))


def remove(writer: Writer, project: str, name: str) -> bool:
    """Whether there was one."""
    if writer.session.get(SecretRow, (project, name)) is None:
        return False
    writer.session.execute(delete(SecretRow).filter_by(project=project, name=name))
    return True
