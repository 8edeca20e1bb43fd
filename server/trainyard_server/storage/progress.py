"""Progress of each replica: steps and metrics, read from its lines as they come, written to the database at intervals.

Of many lines that came together and differ in their numbers alone a few are read: a program that prints thousands of
steps a second costs little more than one that prints a few. Its curves are read from the log, when somebody looks.

Memory holds about a second's worth. A process that has not seen all lines of a replica (it started later, or another
server process received some) reads them once more when the log is complete, so that the verdict of a run is exact.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.lines.progress import CHECKPOINT, ProgressEvent
from trainyard_protocol.lines.progress_reader import ProgressReader
from trainyard_protocol.lines.shapes import shapes
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.domain.metrics.summary import CurveSummary, MetricSummary
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.db.tables import job_values
from trainyard_server.storage.logs.records import NO_TIME, microseconds
from trainyard_server.storage.logs.store import LogFilter, LogStore, Stream

_READER = "reader"  # the state of a replica's ProgressReader, in the JSON of its digest

_TOGETHER = 64
"""Lines of one chunk that are all read. Of more as many are, at the ends of blocks, where that tells all."""

_LEAST_BLOCK = 32

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
    durable_every_s: float | None = None

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
            before = progress.durable_at
            every_s = progress.durable_every_s if before is None else (at - before).total_seconds()
            progress = replace(progress, durable_step=event.step, durable_at=at, durable_every_s=every_s)
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
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_all(self, lines: Sequence[LogLine]) -> None:
        """Add lines that came together."""
        if len(lines) <= _TOGETHER:
            for line in lines:
                self.add(line)
            return
        size = max(_LEAST_BLOCK, 2 * len(lines) // _TOGETHER)
        for start in range(0, len(lines), size):
            self._add_block(lines[start : start + size])

    def add(self, line: LogLine | LogEntry) -> None:
        if (event := self._read(line)) is not None:
            self._consume(event, line)

    def _add_block(self, lines: Sequence[LogLine]) -> None:
        first, last = lines[0], lines[-1]
        event = self._read(first)
        if event is not None:
            self._consume(event, first)
        if event is not None and len(lines) > 2 and len(set(shapes(line.text for line in lines))) == 1:
            before = replace(self.reader)
            end = self._read(last)
            if end is not None and _go_on(event, end):
                self._consume(end, last)
                return
            self.reader = before
        for line in lines[1:]:
            self.add(line)

    def _read(self, line: LogLine | LogEntry) -> ProgressEvent | None:
        return self.reader.read(line.text, line.overwritten) if not line.partial else None

    def _consume(self, event: ProgressEvent, line: LogLine | LogEntry) -> None:
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


def _go_on(first: ProgressEvent, last: ProgressEvent) -> bool:
    """Whether lines between these two, of the same shape, report the steps between theirs, and nothing else. Pure."""
    if first.step is None or last.step is None or last.step <= first.step:
        return False
    return replace(first, step=0, metrics={}) == replace(last, step=0, metrics={}) and (
        first.metrics.keys() == last.metrics.keys()
    )


def _of_run(summaries: Mapping[str, MetricSummary], number: int) -> dict[str, MetricSummary]:
    return {name: summary._replace(run=number) for name, summary in summaries.items()}


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
            log = self._replicas.setdefault((run_id, task), _ReplicaLog())
        digest = None if log.next == start else stored()
        before = CurveSummary.of(digest)
        with log.lock:
            if before.taken > log.digest.taken:
                log.digest = before
                log.reader = ProgressReader.of((digest or {}).get(_READER))
            log.next = start + count if log.next == start else None
            log.add_all(lines)

    def flush(self) -> Mapping[int, bool]:
        """Write what has changed, in one transaction. Returns the keys of the jobs that it is of, each with whether an
        event of it was written."""
        with self._lock:
            replicas = dict(self._replicas)
        changed: dict[tuple[str, str], tuple[ReplicaProgress, dict[str, object]]] = {}
        measured: dict[str, dict[str, MetricSummary]] = {}
        for key, log in replicas.items():
            with log.lock:
                if log.progress != log.written or log.is_digest_new:
                    changed[key] = log.progress, log.values()
                    if log.is_digest_new and key[1] == PRIMARY.name:
                        measured[key[0]] = dict(log.digest.summaries())
                    log.is_digest_new = False
        if len(replicas) > _REMEMBERED:
            oldest = [key for key in replicas if key not in changed][: -_REMEMBERED // 2]
            with self._lock:
                for key in oldest:
                    self._replicas.pop(key, None)
        if not changed:
            return {}
        try:
            with self._store.write() as writer:
                have_events = {
                    run_id
                    for (run_id, task), (_, values) in changed.items()
                    if writer.record_progress(run_id, task, values, complete=False)
                }
                runs = job_values.runs_of(writer, {run_id for run_id, _ in changed})
                primaries = [run for run in runs if run.run_id in measured]
                job_values.record(writer, {run.job: _of_run(measured[run.run_id], run.number) for run in primaries})
        except BaseException:
            for key in changed:
                replicas[key].is_digest_new = True
            raise
        for key, (progress, _) in changed.items():
            replicas[key].written = progress
        having = {run.job for run in runs if run.run_id in have_events}
        return {run.job: run.job in having for run in runs}

    def final_values(
        self, project: str, job_id: str, stream: Stream, run_id: str, count: int
    ) -> tuple[dict[str, object], Mapping[str, MetricSummary]]:
        """Values of the row of a replica whose log is complete with `count` lines, and its metrics. Forgets
        the replica."""
        with self._lock:
            log = self._replicas.pop((run_id, stream.task), _ReplicaLog())
        if log.next != count:
            log = _ReplicaLog()
            reports = LogFilter(frozenset((stream.task,)), run=stream.run, reports=True)
            for line in self._logs.entries(project, job_id, reports):
                log.add(line)
        return log.values(), _of_run(dict(log.digest.summaries()), stream.run)
