"""Progress of each replica: steps and metrics, read from its lines as they come, written to the database at intervals.

Memory holds about a second's worth. A process that has not seen all lines of a replica (it started later, or another
server process received some) reads them once more when the log is complete, so that the verdict of a run is exact.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard_protocol.lines.progress import CHECKPOINT, ProgressEvent
from trainyard_protocol.lines.progress_reader import ProgressReader
from trainyard_protocol.views.views import LogEntry
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.domain.metrics.summary import CurveSummary
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.logs.records import NO_TIME, microseconds
from trainyard_server.storage.logs.store import LogFilter, LogStore, Stream

_READER = "reader"  # the state of a replica's ProgressReader, in the JSON of its digest

_REMEMBERED = 10_000  # replicas; the log of one that is forgotten is read once more at its end


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """Progress of a replica. The names are those of the columns of its row."""

    first_step: int | None = None
    step: int | None = None
    steps: int | None = None
    step_at: datetime | None = None
    durable_step: int | None = None
    durable_at: datetime | None = None

    def after(self, event: ProgressEvent, at: datetime) -> "ReplicaProgress":
        """The progress after an event at a time. `step_at`: the time of the first event of the step. Pure."""
        if event.step is None or not event.is_position:
            return self
        progress = self
        if event.step != self.step:
            first = event.step if self.first_step is None else self.first_step
            progress = replace(progress, first_step=first, step=event.step, step_at=at)
        if event.steps is not None:
            progress = replace(progress, steps=event.steps)
        if event.event == CHECKPOINT:
            progress = replace(progress, durable_step=event.step, durable_at=at)
        return progress


@dataclass(slots=True)
class _ReplicaLog:
    """Position in the log of a replica. `next`: the number of the next line; None if lines were missed."""

    next: int | None = 0
    progress: ReplicaProgress = field(default_factory=ReplicaProgress)
    written: ReplicaProgress = field(default_factory=ReplicaProgress)
    digest: CurveSummary = field(default_factory=CurveSummary)
    reader: ProgressReader = field(default_factory=ProgressReader)
    is_digest_new: bool = False

    def add(self, line: LogLine | LogEntry) -> None:
        event = self.reader.read(line.text, line.overwritten) if not line.partial else None
        if event is None:
            return
        time = microseconds(line.time)
        if time == NO_TIME:
            return
        at = datetime.fromtimestamp(time // 10**6, UTC) + timedelta(microseconds=time % 10**6)
        self.progress = self.progress.after(event, at)
        if event.metrics or event.epoch is not None or event.epochs is not None:
            self.digest.add(event)
            self.is_digest_new = True

    def values(self) -> dict[str, object]:
        """Values of the replica's row."""
        values: dict[str, object] = {name: getattr(self.progress, name) for name in ReplicaProgress.__slots__}
        digest = self.digest.json()
        return values | {"metrics": digest and digest | {_READER: self.reader.state()}}


def _no_digest() -> None:
    """The default: no digest is stored yet."""


class ProgressTracker:
    """Progress of all replicas. Safe to use from any thread."""

    def __init__(self, store: Store, logs: LogStore) -> None:
        self._store = store
        self._logs = logs
        self._lock = threading.Lock()
        self._replicas: dict[tuple[str, str], _ReplicaLog] = {}

    def add(
        self,
        run_id: str,
        task: str,
        start: int,
        count: int,
        lines: Sequence[LogLine],
        stored: Callable[[], Mapping[str, Any] | None] = _no_digest,
    ) -> None:
        """Read `count` lines of a replica from line `start` on, of which `lines` may report progress. `stored` loads
        the digest of its row; it is called if this process has missed lines before these."""
        with self._lock:
            log = self._replicas.get((run_id, task))
            is_complete = start == 0 if log is None else log.next == start
        digest = None if is_complete else stored()
        before = CurveSummary.of(digest)
        with self._lock:
            log = self._replicas.setdefault((run_id, task), _ReplicaLog())
            if before.taken > log.digest.taken:
                log.digest = before
                log.reader = ProgressReader.of((digest or {}).get(_READER))
            log.next = start + count if log.next == start else None
            for line in lines:
                log.add(line)

    def flush(self) -> bool:
        """Write what has changed, in one transaction. False if nothing has."""
        with self._lock:
            changed = {
                key: (r.progress, r.values())
                for key, r in self._replicas.items()
                if r.progress != r.written or r.is_digest_new
            }
            for key in changed:
                self._replicas[key].is_digest_new = False
            if len(self._replicas) > _REMEMBERED:
                oldest = [key for key in self._replicas if key not in changed][: -_REMEMBERED // 2]
                for key in oldest:
                    del self._replicas[key]
        if not changed:
            return False
        try:
            with self._store.write() as writer:
                for (run_id, task), (_, values) in changed.items():
                    writer.record_progress(run_id, task, values, complete=False)
        except BaseException:
            with self._lock:
                for key in changed:
                    if key in self._replicas:
                        self._replicas[key].is_digest_new = True
            raise
        with self._lock:
            for key, (progress, _) in changed.items():
                if key in self._replicas:
                    self._replicas[key].written = progress
        return True

    def final_values(self, project: str, job_id: str, stream: Stream, run_id: str, count: int) -> dict[str, object]:
        """Values of the row of a replica whose log is complete with `count` lines. Forgets the replica."""
        with self._lock:
            log = self._replicas.pop((run_id, stream.task), _ReplicaLog())
        if log.next != count:
            log = _ReplicaLog()
            reports = LogFilter(frozenset((stream.task,)), run=stream.run, reports=True)
            for line in self._logs.entries(project, job_id, reports):
                log.add(line)
        return log.values()
