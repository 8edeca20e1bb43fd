"""Notifications between server processes over PostgreSQL (LISTEN and NOTIFY,
https://www.postgresql.org/docs/current/sql-notify.html).

A notification is only a reason to read the database again, so a lost one delays and breaks nothing. After each new
connection all subscribers are woken, since notifications may have been missed.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterator

import psycopg

from trainyard_server.storage.events.notifier import Notifier

logger = logging.getLogger(__name__)

_CHANNEL = "trainyard"
_PAYLOAD = 7900  # bytes: the limit of PostgreSQL is 8000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_LISTEN_S = 0.2  # how often the listener checks for the shutdown


class PostgresNotifications:
    """Two threads, each with a connection of its own, which they open again after each failure."""

    def __init__(self, url: str, notifier: Notifier) -> None:
        """`url` is SQLAlchemy's, `postgresql+psycopg://...`. Nothing is published before `start`."""
        self._conninfo = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._notifier = notifier
        self._me = uuid.uuid4().hex
        self._outbox: set[str] = set()
        self._changed = threading.Condition()
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
        """Return at once. A topic that is published again before it is sent is sent once."""
        with self._changed:
            self._outbox.update(topics)
            self._changed.notify()

    def close(self) -> None:
        self._closed.set()
        with self._changed:
            self._changed.notify()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _for_ever(self, work: Callable[[psycopg.Connection], None]) -> None:
        pause, failed = _FIRST_PAUSE_S, False
        while not self._closed.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5) as connection:
                    if failed:
                        logger.info("Reconnected to PostgreSQL notifications")
                    pause, failed = _FIRST_PAUSE_S, False
                    work(connection)
            except psycopg.Error as error:
                if not failed:
                    logger.warning("Disconnected from PostgreSQL notifications: %s", str(error).strip())
                failed = True
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
            with self._changed:
                self._changed.wait_for(lambda: self._outbox or self._closed.is_set())
                topics, self._outbox = self._outbox, set()
            if not topics:
                return  # closed
            try:
                for payload in self._payloads(topics):
                    connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, payload))
            except psycopg.Error:
                with self._changed:
                    self._outbox |= topics
                raise

    def _payloads(self, topics: set[str]) -> Iterator[str]:
        """Payloads: the sender and as many topics as fit."""
        payload = self._me
        for topic in sorted(topics):
            if len(payload) + 1 + len(topic.encode()) > _PAYLOAD:
                yield payload
                payload = self._me
            payload += f" {topic}"
        yield payload
