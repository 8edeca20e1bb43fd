"""Leader election: one of several server processes holds the scheduler's lease and ticks.

The holder increments a heartbeat counter in its row. A process that sees no change for the lease's `ttl_s`, by its own
monotonic clock, acquires the lease. A holder that was paused may tick once beside the new one. That is safe: every
decision is guarded by the state that it was made on. The lease saves work and measures silence in one process.
"""

import os
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass

from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.failures import DatabaseError

LEASE = "scheduler"


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """The lease, unchanged since `at`."""

    holder: str
    heartbeat: int
    at: float


class LeaderElection:
    def __init__(self, store: Store, stopwatch: Stopwatch, ttl_s: float) -> None:
        self.name = f"{socket.gethostname()[:40]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._store = store
        self._stopwatch = stopwatch
        self._ttl_s = ttl_s
        self._renewed: float | None = None  # None: not the holder
        self._seen: _ObservedLease | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process was the one that ticks when `held` was last called."""
        return self._store.exclusive or self._renewed is not None

    def held(self) -> bool:
        """Acquire or renew the lease. Whether this process ticks now; call it before each tick."""
        if self._store.exclusive:
            return True
        now = self._stopwatch()
        if self._renewed is not None and now - self._renewed < self._ttl_s / 3:
            return True
        with self._store.read() as reader:
            lease = reader.lease(LEASE)
        self._renewed = None
        if lease is not None and lease.holder != self.name:
            if self._seen is None or (lease.holder, lease.heartbeat) != (self._seen.holder, self._seen.heartbeat):
                self._seen = _ObservedLease(lease.holder, lease.heartbeat, now)
            if now - self._seen.at < lease.ttl_s:
                return False
        with self._store.write() as writer:
            taken = writer.acquire_lease(LEASE, self.name, self._ttl_s, before=lease)
        self._renewed = now if taken else None
        return taken

    def release(self) -> None:
        """Release the lease, so that another process need not wait. Without the database it expires."""
        if self._renewed is not None:
            with suppress(DatabaseError), self._store.write() as writer:
                writer.release_lease(LEASE, self.name)
            self._renewed = None
