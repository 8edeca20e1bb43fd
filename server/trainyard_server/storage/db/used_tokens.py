"""What must not be used again: codes that somebody has signed in with, sessions that were ended. The SQL of it.

Each is remembered for as long as it would be good otherwise, and nothing of it but a digest.
"""

import hashlib
from datetime import datetime

from sqlalchemy import delete, select

from trainyard_server.storage.db.models import SpentRow
from trainyard_server.storage.db.repository import Reader, Writer


def spend(writer: Writer, text: str, until: datetime, now: datetime) -> bool:
    """Notes that it is spent; False where it was already. Forgets what no longer matters."""
    digest = _digest(text)
    if writer.session.get(SpentRow, digest) is not None:
        return False
    writer.session.execute(delete(SpentRow).where(SpentRow.until < now))
    writer.session.add(SpentRow(digest=digest, until=until))
    return True


def is_spent(reader: Reader, text: str) -> bool:
    return reader.session.scalar(select(SpentRow.digest).filter_by(digest=_digest(text))) is not None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
