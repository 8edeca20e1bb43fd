"""News between server processes on one PostgreSQL database: what one publishes wakes those who wait in the others.

PostgreSQL carries it (LISTEN and NOTIFY, https://www.postgresql.org/docs/current/sql-notify.html). News is only ever
a reason to look again at what the database says, so a lost one delays and breaks nothing; after each new connection
everybody is woken, since something may have been missed without one.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterator

import psycopg

from trainyard_server.storage.events.notifier import Notifier

logger = logging.getLogger(__name__)

_CHANNEL = "trainyard"
_PAYLOAD = 7900  # bytes: PostgreSQL takes less than 8000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_LISTEN_S = 0.2  # how often the listener looks whether it is to end


class Bus:
    """Two threads, each with a connection of its own; they connect again for as long as it takes."""

    def __init__(self, url: str, notifier: Notifier) -> None:
        """`url` is SQLAlchemy's, `postgresql+psycopg://...`. Nothing is published before `start`."""
        self._conninfo = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._notifier = notifier
        self._me = uuid.uuid4().hex
        self._outbox: set[str] = set()
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._threads = (
            threading.Thread(target=self._for_ever, args=(self._listen,), name="bus in", daemon=True),
            threading.Thread(target=self._for_ever, args=(self._send,), name="bus out", daemon=True),
        )

    def start(self) -> None:
        self._notifier.relay = self.publish
        for thread in self._threads:
            thread.start()

    def publish(self, *topics: str) -> None:
        """Returns at once; topics that are published again before they are sent travel once."""
        with self._news:
            self._outbox.update(topics)
            self._news.notify()

    def close(self) -> None:
        self._closed.set()
        with self._news:
            self._news.notify()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _for_ever(self, work: Callable[[psycopg.Connection], None]) -> None:
        pause, said = _FIRST_PAUSE_S, False
        while not self._closed.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5) as connection:
                    if said:
                        logger.info("news between the server processes travels again")
                    pause, said = _FIRST_PAUSE_S, False
                    work(connection)
            except psycopg.Error as error:
                if not said:
                    logger.warning("no news between the server processes: %s", str(error).strip())
                said = True
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _listen(self, connection: psycopg.Connection) -> None:
        connection.execute(f"LISTEN {_CHANNEL}")
        self._notifier.wake_all()
        while not self._closed.is_set():
            for notify in connection.notifies(timeout=_LISTEN_S):
                sender, *topics = notify.payload.split(" ")
                if sender != self._me:
                    self._notifier.deliver(*topics)
                if self._closed.is_set():
                    return

    def _send(self, connection: psycopg.Connection) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._outbox or self._closed.is_set())
                topics, self._outbox = self._outbox, set()
            if not topics:
                return  # closed
            try:
                for payload in self._payloads(topics):
                    connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, payload))
            except psycopg.Error:
                with self._news:
                    self._outbox |= topics
                raise

    def _payloads(self, topics: set[str]) -> Iterator[str]:
        """Our name and as many topics as fit, until all are told."""
        payload = self._me
        for topic in sorted(topics):
            if len(payload) + 1 + len(topic.encode()) > _PAYLOAD:
                yield payload
                payload = self._me
            payload += f" {topic}"
        yield payload
