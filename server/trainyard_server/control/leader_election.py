"""Which of several server processes ticks: the one that holds the scheduler's lease.

The holder changes its row all the time. Where another process sees the row stand still for as long as the lease
lasts, by its own monotonic clock, it takes it. A holder that was stopped and goes on may tick once beside the new
one; that is harmless, for every decision is guarded by the state that it was made on. The lease saves work, and
keeps the measuring of silence in one place.
"""

import os
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.storage.db.repository import Store

LEASE = "scheduler"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The lease as it has been since `at`."""

    holder: str
    beat: int
    at: float


class Leadership:
    def __init__(self, store: Store, stopwatch: Stopwatch, ttl_s: float) -> None:
        self.name = f"{socket.gethostname()[:40]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._store = store
        self._stopwatch = stopwatch
        self._ttl_s = ttl_s
        self._renewed: float | None = None  # None: it is not ours
        self._seen: _Seen | None = None

    def held(self) -> bool:
        """Takes or keeps the lease: whether this process is to tick now. To be asked before each tick."""
        if self._store.exclusive:
            return True
        now = self._stopwatch()
        if self._renewed is not None and now - self._renewed < self._ttl_s / 3:
            return True
        with self._store.read() as reader:
            lease = reader.lease(LEASE)
        self._renewed = None
        if lease is not None and lease.holder != self.name:
            if self._seen is None or (lease.holder, lease.beat) != (self._seen.holder, self._seen.beat):
                self._seen = _Seen(lease.holder, lease.beat, now)
            if now - self._seen.at < lease.ttl_s:
                return False
        with self._store.write() as writer:
            taken = writer.take_lease(LEASE, self.name, self._ttl_s, before=lease)
        self._renewed = now if taken else None
        return taken

    def release(self) -> None:
        """Another process need not wait for the lease to end. Without the database it ends by itself."""
        if self._renewed is not None:
            with suppress(SQLAlchemyError), self._store.write() as writer:
                writer.drop_lease(LEASE, self.name)
            self._renewed = None
