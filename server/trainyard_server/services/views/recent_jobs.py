"""Jobs as all open pages of this process show them: what has changed is read once, all else is not read again."""

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from threading import Lock
from typing import Any

from trainyard_server.context import Backend
from trainyard_server.storage.db.queries.job_queries import JobList, JobListEntry
from trainyard_server.storage.events.notifier import JobChanges

_KEPT_S = 10.0
"""After this time everything is read again, whatever was published."""

_MOST = 5_000  # jobs, and shared answers


class RecentJobs:
    """A cache that published changes empty. Thread-safe."""

    def __init__(self, backend: Backend, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._stopwatch = stopwatch
        self._reading = Lock()  # held for reads of the database, which others of the same then need not do
        self._lock = Lock()
        self._entries: dict[int, tuple[float, JobListEntry]] = {}
        self._shared: dict[Hashable, tuple[float, Any]] = {}
        self._changes = 0
        backend.notifier.listen(self._forget)

    def entries(self, keys: Collection[int]) -> Sequence[JobListEntry]:
        """The jobs with these keys that exist, in their order. A job that has not changed is the same object again."""
        with self._reading:
            with self._lock:
                before, now = self._changes, self._stopwatch()
                entries = {key: entry for key in keys if (entry := self._current(key, now)) is not None}
            missing = [key for key in keys if key not in entries]
            if missing:
                with self._backend.store.read() as reader:
                    read = {entry.key: entry for entry in JobList(reader, None).entries(missing)}
                with self._lock:
                    for key, entry in read.items():
                        old = self._entries.get(key)
                        entries[key] = old[1] if old is not None and old[1] == entry else entry
                    if self._changes == before:
                        if len(self._entries) + len(read) > _MOST:
                            self._entries.clear()
                        self._entries.update({key: (now, entries[key]) for key in read})
        return [entries[key] for key in keys if key in entries]

    def shared(self, name: Hashable, read: Callable[[], Any]) -> Any:
        """The result of `read`, or the one that was read for this name since the state of a job changed last."""
        with self._reading:
            with self._lock:
                before, now = self._changes, self._stopwatch()
                at, value = self._shared.get(name, (float("-inf"), None))
            if now - at < _KEPT_S:
                return value
            value = read()
            with self._lock:
                if self._changes == before:
                    if len(self._shared) >= _MOST:
                        self._shared.clear()
                    self._shared[name] = now, value
            return value

    def _current(self, key: int, now: float) -> JobListEntry | None:
        at, entry = self._entries.get(key, (float("-inf"), None))
        return entry if now - at < _KEPT_S else None

    def _forget(self, topics: Sequence[str]) -> None:
        changes = JobChanges.among(topics)
        if not changes.keys and not changes.any_job:
            return
        with self._lock:
            self._changes += 1
            if changes.any_job:
                self._entries.clear()
            for key in changes.keys:
                self._entries.pop(key, None)
            if changes.any_job or changes.states:
                self._shared.clear()
