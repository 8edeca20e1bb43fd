"""Sessions that somebody has ended: from then on refused by every server on the database, also after a restart.

A session says by itself who it is, so only those that were ended have to be remembered. Each request with a session
asks the database, by a primary key: a copy in memory would be wrong for as long as news from another server travels.
"""

from starlette.concurrency import run_in_threadpool

from trainyard_server.context import Clock
from trainyard_server.domain.sessions import LONGEST, Session
from trainyard_server.storage.db import used_tokens as spent
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier, session_topic

_LOOK_S = (
    60.0  # who waits for the end looks so often, should the news have been lost with the server that had it
)


class EndedSessions:
    def __init__(self, store: Store, notifier: Notifier, clock: Clock) -> None:
        self._store = store
        self._notifier = notifier
        self._clock = clock

    def end(self, session: Session) -> None:
        """With every copy of its cookie, and every cookie that gave it more time."""
        with self._store.write() as writer:
            spent.spend(writer, _name(session), session.since + LONGEST, self._clock())
        self._notifier.publish(session_topic(session.nonce))

    def is_ended(self, session: Session) -> bool:
        with self._store.read() as reader:
            return spent.is_spent(reader, _name(session))

    async def until_ended(self, session: Session) -> bool:
        """Waits for that; False when the server goes down before. Raises SQLAlchemyError where it cannot be known."""
        with self._notifier.subscribe(session_topic(session.nonce)) as news:
            while not self._notifier.closed:
                if await run_in_threadpool(self.is_ended, session):
                    return True
                await news.wait(_LOOK_S)
        return False


def _name(session: Session) -> str:
    """The nonce stays when a session gets more time. It is no secret: without the token it makes no cookie."""
    return f"session {session.nonce}"
