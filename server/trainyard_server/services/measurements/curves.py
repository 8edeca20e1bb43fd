"""Metric curves of one job, read from its log and updated with it."""

import math
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import NamedTuple, Protocol

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.lines.progress import ProgressEvent
from trainyard_protocol.lines.progress_reader import ProgressReader
from trainyard_server.domain.lifecycle.evaluators import is_evaluator
from trainyard_server.domain.metrics.results import MetricResult
from trainyard_server.domain.metrics.series import LEAST, Curve
from trainyard_server.domain.metrics.sources import MetricSource, source_of
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.job_files.event_files import EventFiles, Scalar
from trainyard_server.storage.logs.records import NO_TIME, microseconds
from trainyard_server.storage.logs.store import SERVICE, LogFilter, LogStore, Stream

CURVES = 2000
"""Limit of one job; further metrics are left out."""

POINTS = 2_000_000
"""Limit of one job, 24 bytes each. If there are more, all its curves are thinned to half."""

_LINES_PER_CALL = 500_000
_REPORTS = LogFilter(reports=True)
_EPOCHS = 10_000

Key = tuple[str, Stream]
"""Name and stream of a metric."""


class Logged(NamedTuple):
    """Points of a job, each with its run, up to the `last` number. `more`: there are further ones."""

    points: Sequence[tuple[int, Scalar]]
    last: int
    more: bool


class Curves(Protocol):
    """A further source of a job's points, which are numbered."""

    def points_after(self, reader: Reader, key: int, number: int) -> Logged:
        """The points of a job, by its key, above a number (0: all)."""

    def lacks_points(self, reader: Reader, key: int) -> bool:
        """Whether points of the job were not stored, for want of room."""


class JobCurves:
    """Hold `lock` for everything else. A damaged line is left out."""

    def __init__(self, project: str, job_id: str) -> None:
        self.lock = Lock()
        self._project = project
        self._job_id = job_id
        self.results: tuple[MetricResult, ...] = ()
        """The most important ones, of the version `results_of`."""
        self.results_of = ""
        self.next_results_at = 0.0
        self.asked_at = 0.0
        self.is_reading = False
        self._begin()

    def _begin(self) -> None:
        self.curves: dict[Key, Curve] = {}
        self.changed: dict[tuple[str, str], int] = {}
        """The `count` of the newest point, by name and task."""
        self.token = uuid.uuid4().hex
        self.count = 0
        """Increases with every change; comparable under the same `token` only."""
        self.points = 0
        self.start: float | None = None  # the earliest time of a point, in seconds since 1970
        self.step: int | None = None
        self.steps: int | None = None
        self.epoch: float | None = None
        self.epochs: float | None = None
        self.epoch_starts: dict[int, tuple[int, float]] = {}
        self.complete = True
        self.thinned = False
        self.left_out = False
        self._of: dict[Stream, dict[str, Curve]] = {}  # the same curves, by stream first
        self._touched: dict[Stream, set[str]] = {}
        self._readers: dict[Stream, ProgressReader] = {}
        self._sources: dict[str, MetricSource] = {}  # of each metric, by its name in lower case
        self.logged: dict[Curves, int] = {}  # the numbers of the last points that were added
        self.event_files = EventFiles()
        self.next_read_at = 0.0
        self._after = 0  # the cursor up to which the log was read
        self._is_new = False
        self._newest = -math.inf
        self._run = 0

    @property
    def version(self) -> str:
        """Changes with every new point."""
        return f"{self.token}-{self.count}"

    def catch_up(self, logs: LogStore) -> None:
        """Read the lines that are new, or a bounded number of them. Raises OSError."""
        _, total = logs.extent(self._project, self._job_id)
        if self._after > total:
            self._begin()  # a repair has dropped lines that were read
        self._is_new = bool(self._touched)  # read by a call that failed
        limit = min(total, self._after + _LINES_PER_CALL)
        while self._after < limit:
            result = logs.read(self._project, self._job_id, self._after, _REPORTS, limit)
            for entry in result.entries:
                self._add(entry)
            self._after = result.last
            self.points = sum(map(len, self.curves.values()))
            if self.points > POINTS:
                self._thin()
        self._note_changes()
        self.count += self._is_new
        self.points = sum(len(curve.points()) for curve in self.curves.values())  # after they were sorted
        self.complete = self._after >= total

    def source(self, name: str) -> MetricSource:
        """The source of a metric that has a curve."""
        return self._sources[name.casefold()]

    def add_logged(self, points: Sequence[tuple[int, Scalar]]) -> bool:
        """Add points that the program has logged, each with its run. Of several at one step the last is as MLflow has
        it: by time, then by value. True if any was new."""
        ordered = sorted(points, key=lambda point: (point[0], point[1].step, point[1].time, point[1].value))
        return self._add_all(ordered, MetricSource.LOGGED)

    def add_written(self, points: Sequence[tuple[int, Scalar]]) -> bool:
        """Add points of event files, but for metrics that are logged or printed too. True if any was new."""
        return self._add_all(points, MetricSource.WRITTEN)

    def _add_all(self, points: Sequence[tuple[int, Scalar]], source: MetricSource) -> bool:
        for run, (name, step, value, time) in points:
            stream = Stream(run, PRIMARY.name)
            curve = self._curve(name, stream, source)
            if curve is not None:
                self.start = time if self.start is None else min(self.start, time)
                self._touched.setdefault(stream, set()).add(name)
                curve.add(step, value, time)
        if not self._touched:
            return False
        self._note_changes()
        self.count += 1
        self.points = sum(len(curve.points()) for curve in self.curves.values())
        if self.points > POINTS:
            self._thin()
        return True

    def _add(self, line: LogEntry) -> None:
        stream = Stream(line.run, line.task)
        if stream == SERVICE or line.partial:
            return
        event = self._readers.setdefault(stream, ProgressReader()).read(line.text, line.overwritten)
        if event is None or event.step is None:
            return
        passed = microseconds(line.time)
        if passed == NO_TIME:
            return
        time = passed / 1e6
        self._is_new = True
        if event.is_position:
            self._note(stream, event, event.step, time)
        if not event.metrics:
            return
        self.start = time if self.start is None else min(self.start, time)
        self._touched.setdefault(stream, set()).update(event.metrics)
        source = source_of(event)
        for name, value in event.metrics.items():
            curve = self._curve(name, stream, source)
            if curve is not None:
                curve.add(event.step, value, time)

    def _curve(self, name: str, stream: Stream, source: MetricSource) -> Curve | None:
        """The curve of a metric from a source; None if it has a better one, and if there are too many. The first point
        of a better source replaces all of the others."""
        folded = name.casefold()
        best = self._sources.get(folded, source)
        if best < source:
            return None
        if best > source:
            self._drop(folded)
        own = self._of.setdefault(stream, {})
        curve = own.get(name)
        if curve is not None:
            return curve
        if len(self.curves) >= CURVES:
            self.left_out = True
            return None
        self._sources[folded] = source
        curve = own[name] = self.curves[name, stream] = Curve()
        return curve

    def _drop(self, folded: str) -> None:
        for name, stream in [key for key in self.curves if key[0].casefold() == folded]:
            del self.curves[name, stream], self._of[stream][name]

    def _note_changes(self) -> None:
        for stream, names in self._touched.items():
            for name in names & self._of[stream].keys():
                self.changed[name, stream.task] = self.count + 1
        self._touched.clear()

    def _note(self, stream: Stream, event: ProgressEvent, step: int, time: float) -> None:
        """Update the position of the newest run. An evaluator follows the others, and may run alone."""
        if is_evaluator(stream.task):
            return
        if stream.run > self._run:
            self._run, self._newest, self.step = stream.run, -math.inf, None
        if stream.run == self._run:
            self.step = step if self.step is None else max(self.step, step)
            if time >= self._newest:
                self._newest = time
                self.steps = self.steps if event.steps is None else event.steps
                self.epoch = self.epoch if event.epoch is None else event.epoch
                self.epochs = self.epochs if event.epochs is None else event.epochs
        if event.epoch is not None:
            number = int(event.epoch)
            start = self.epoch_starts.get(number)
            if start is None and len(self.epoch_starts) >= _EPOCHS:
                return
            if start is None or step < start[0]:
                self.epoch_starts[number] = (step, event.epoch)

    def _thin(self) -> None:
        for curve in self.curves.values():
            curve.thin(max(LEAST, len(curve) // 2))
        self.points = sum(map(len, self.curves.values()))
        self.changed = dict.fromkeys(self.changed, self.count + 1)
        self.thinned = True


def utc_time(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)
