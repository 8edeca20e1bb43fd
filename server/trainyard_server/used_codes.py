"""Which codes for signing in have been used: the SQL of it. One is remembered for as long as it could be used again."""

import hashlib
from datetime import datetime

from sqlalchemy import delete

from trainyard_server.schema import UsedCodeRow
from trainyard_server.store import Writer


def use(writer: Writer, text: str, expires: datetime, now: datetime) -> bool:
    """Notes that the code is used; False where it was already. Of the code itself nothing is kept but its digest."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    if writer.session.get(UsedCodeRow, digest) is not None:
        return False
    writer.session.execute(delete(UsedCodeRow).where(UsedCodeRow.expires_at < now))
    writer.session.add(UsedCodeRow(digest=digest, expires_at=expires))
    return True
