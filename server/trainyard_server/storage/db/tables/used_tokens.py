"""Used tokens: sign-in codes that were used and sessions that were ended.

Only digests are stored, each until its token would have expired.
"""

import hashlib
from datetime import datetime

from sqlalchemy import delete, select

from trainyard_server.storage.db.base.people_models import UsedTokenRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer


def mark_used(writer: Writer, text: str, until: datetime, now: datetime) -> bool:
    """Mark a token as used; False if it was already. Deletes expired ones."""
    digest = _digest(text)
    if writer.session.get(UsedTokenRow, digest) is not None:
        return False
    writer.session.execute(delete(UsedTokenRow).where(UsedTokenRow.until < now))
    writer.session.add(UsedTokenRow(digest=digest, until=until))
    return True


def is_used(reader: Reader, text: str) -> bool:
    return reader.session.scalar(select(UsedTokenRow.digest).filter_by(digest=_digest(text))) is not None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
