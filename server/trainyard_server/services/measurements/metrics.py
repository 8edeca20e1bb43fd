"""Metric curves of jobs. They are read from the logs on request, and cached in memory."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from time import monotonic
from typing import NamedTuple

from trainyard_protocol.answers.comparison import CurvesView, JobCurvesView
from trainyard_protocol.answers.metrics import MetricResultView, MetricSeries, MetricsView, number
from trainyard_protocol.errors import InvalidArgument, NotFound, Violation
from trainyard_protocol.job.cluster import TASK_TYPES, Task
from trainyard_server.context import Backend
from trainyard_server.domain.metrics.results import MetricResult, result
from trainyard_server.domain.metrics.series import LEAST, Points, joined
from trainyard_server.domain.metrics.sources import MetricSource
from trainyard_server.domain.metrics.summary import ordered
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.services.measurements.curves import JobCurves, utc_time
from trainyard_server.services.measurements.job_files import JobFiles
from trainyard_server.services.measurements.written_curves import FIRST_WAIT_S, WrittenCurves, written_points

DEFAULT_POINTS = 1000
MOST_POINTS = 10_000
ANSWER_POINTS = 200_000
"""Limit of points in one answer; with many series each has fewer."""

_RESULTS = 8
_RESULT_POINTS = 300
_MANY_POINTS = 50_000  # of a job: summing them up takes a tenth of a second
_CACHED_POINTS = 6_000_000  # of all jobs, 24 bytes each
_CACHED_JOBS = 256


class SettledMetric(NamedTuple):
    """The result of a metric and its source."""

    result: MetricResult
    source: MetricSource


Row = tuple[int, str, str, int, str, float | str]

HEADER = ("run", "task", "metric", "step", "time", "value")
"""Names of the values of a Row."""


@dataclass(frozen=True, slots=True)
class MetricsQuery:
    """A query of curves: `names` and `task` (empty: all), a range of steps with both ends, points of each, and `after`:
    only series that changed after that version. Raises InvalidArgument with every violation."""

    names: tuple[str, ...] = ()
    task: str = ""
    from_step: int | None = None
    to_step: int | None = None
    points: int = DEFAULT_POINTS
    after: str = ""

    def __post_init__(self) -> None:
        wrong = []
        if self.task:
            try:
                Task.parse(self.task)
            except ValueError as error:
                wrong.append(Violation("task", f"{error}."))
        if not LEAST <= self.points <= MOST_POINTS:
            wrong.append(Violation("points", f"must be from {LEAST} to {MOST_POINTS}; this is {self.points}."))
        if self.from_step is not None and self.to_step is not None and self.from_step > self.to_step:
            message = f"must not be less than from_step, {self.from_step}; this is {self.to_step}."
            wrong.append(Violation("to_step", message))
        if wrong:
            raise InvalidArgument(wrong)


class Metrics:
    """Safe to use from any thread."""

    def __init__(self, backend: Backend, files: JobFiles, stopwatch: Callable[[], float] = monotonic) -> None:
        self._backend = backend
        self._stopwatch = stopwatch
        self._files = files
        self._written = WrittenCurves(backend, files)
        self._lock = Lock()
        self._jobs: OrderedDict[int, JobCurves] = OrderedDict()

    def close(self) -> None:
        self._written.close()

    def view(self, project: str, job_id: str, query: MetricsQuery) -> MetricsView:
        """Raises NotFound; OSError where the log cannot be read."""
        job = self._job(project, job_id)
        with job.lock:
            job.catch_up(self._backend.logs)
            return _view(job, query)

    def views(self, names: Sequence[tuple[str, str]], query: MetricsQuery, points: int) -> CurvesView:
        """The curves of several jobs, with at most about `points` points in all; without jobs that do not exist. Raises
        InvalidArgument, OSError."""
        if not LEAST <= points <= ANSWER_POINTS:
            message = f"must be from {LEAST} to {ANSWER_POINTS}; this is {points}."
            raise InvalidArgument(Violation("points", message))
        answers = []
        for project, job_id in names:
            try:
                job = self._job(project, job_id)
            except NotFound:
                continue
            with job.lock:
                job.catch_up(self._backend.logs)
                curves = _view(job, query, points // len(names))
            answers.append(JobCurvesView(project=project, job_id=job_id, curves=curves))
        return CurvesView(jobs=tuple(answers))

    def version(self, project: str, job_id: str) -> tuple[str, bool]:
        """The version of the job's curves, and whether there are any. Raises NotFound; OSError."""
        job = self._job(project, job_id)
        with job.lock:
            job.catch_up(self._backend.logs)
            return job.version, bool(job.curves)

    def results(self, project: str, job_id: str, files_timeout_s: float = FIRST_WAIT_S) -> tuple[MetricResult, ...]:
        """The last and the best value of the job's most important metrics, each of its first replica, with a bounded
        number of points. The first call waits up to `files_timeout_s` for event files. A job with very many points is
        summed up a tenth of the time at most, so its results may be some seconds old.

        Raises NotFound; OSError.
        """
        job = self._job(project, job_id, files_timeout_s)
        with job.lock:
            job.catch_up(self._backend.logs)
            begin = self._stopwatch()
            if job.results_of != job.version and begin >= job.next_results_at:
                found = islice(_results(job), _RESULTS)
                job.results = tuple(replace(metric, points=metric.points.thinned(_RESULT_POINTS)) for metric in found)
                job.results_of = job.version
                if job.points > _MANY_POINTS:
                    job.next_results_at = begin + 10 * (self._stopwatch() - begin)
            return job.results

    def settled(self, project: str, job_id: str, key: int, *, with_files: bool) -> list[SettledMetric]:
        """The results of every metric of a job whose log is complete, read anew from all its sources; `with_files`
        includes event files. Raises OSError."""
        job = JobCurves(project, job_id)
        job.catch_up(self._backend.logs)
        while not job.complete:
            job.catch_up(self._backend.logs)
        self._add_logged(key, job)
        more = with_files
        while more:
            points, more, _ = written_points(self._backend, self._files, project, job_id, job.event_files)
            job.add_written(points)
        return [SettledMetric(metric, job.source(metric.name)) for metric in _results(job)]

    def points(self, project: str, job_id: str, name: str) -> Points:
        """The points of a metric of its first replica, over the runs. Raises NotFound; OSError."""
        job = self._job(project, job_id)
        with job.lock:
            job.catch_up(self._backend.logs)
            found = next(_results(job, name), None)
        return found.points if found is not None else Points()

    def rows(self, project: str, job_id: str) -> Iterator[Row]:
        """Every point, sorted, with steps that a later run trained again: run, task, name, step, time, value.

        Raises NotFound and OSError at once.
        """
        job = self._job(project, job_id)
        complete = False
        while not complete:
            with job.lock:  # other requests run between two parts of a long log
                job.catch_up(self._backend.logs)
                complete = job.complete
                curves = [
                    (stream.run, stream.task, name, curve.points(), len(curve))
                    for (name, stream), curve in job.curves.items()
                    if complete
                ]
        curves.sort(key=lambda row: (row[0], _task_order(row[1]), row[2]))
        return _rows(curves)

    def _add_logged(self, key: int, job: JobCurves) -> None:
        """Add what the program has logged since. Hold the job's lock."""
        for capability in self._backend.capabilities:
            source, more = capability.curves, capability.curves is not None
            while source is not None and more:
                with self._backend.store.read() as reader:
                    points, last, more = source.points_after(reader, key, job.logged.get(source, 0))
                if points:
                    job.add_logged(points)
                job.logged[source] = last

    def _job(self, project: str, job_id: str, files_timeout_s: float = FIRST_WAIT_S) -> JobCurves:
        with self._backend.store.read() as reader:
            key = known_job(reader, project, job_id).key
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = JobCurves(project, job_id)
            self._jobs.move_to_end(key)
            points = sum(cached.points for cached in self._jobs.values())
            while len(self._jobs) > 1 and (points > _CACHED_POINTS or len(self._jobs) > _CACHED_JOBS):
                points -= self._jobs.popitem(last=False)[1].points
        with job.lock:
            job.catch_up(self._backend.logs)  # first: what is printed is not drawn from other sources too
            self._add_logged(key, job)
        self._written.refresh(project, job_id, key, job, files_timeout_s)
        return job


def _view(job: JobCurves, query: MetricsQuery, answer_points: int = ANSWER_POINTS) -> MetricsView:
    token, _, count = query.after.partition("-")
    after = int(count) if token == job.token and count.isdecimal() and len(count) < 20 else -1
    groups: dict[tuple[str, str], list[tuple[int, Points]]] = {}
    for (name, stream), curve in job.curves.items():
        if (query.names and name not in query.names) or (query.task and stream.task != query.task):
            continue
        if job.changed[name, stream.task] > after:
            groups.setdefault((name, stream.task), []).append((stream.run, curve.points()))
    names = ordered(dict.fromkeys(name for name, _ in job.curves))
    order = {name: index for index, name in enumerate(names)}
    in_order = sorted(groups, key=lambda key: (order[key[0]], _task_order(key[1])))
    series = [
        (name, task, run, points.between(query.from_step, query.to_step))
        for name, task in in_order
        for run, points in joined(groups[name, task])
    ]
    results = (result(name, task, groups[name, task]) for name, task in in_order)
    limit = min(query.points, max(LEAST, answer_points // max(1, len(series))))
    start = job.start or 0.0
    return MetricsView(
        metrics=tuple(_series(name, task, run, points, limit, start) for name, task, run, points in series if points),
        results=tuple(_result_view(metric) for metric in results if metric is not None),
        names=tuple(names),
        tasks=tuple(sorted({stream.task for _, stream in job.curves}, key=_task_order)),
        main=names[0] if names else "",
        start=utc_time(start) if job.start is not None else None,
        step=job.step,
        steps=job.steps,
        epoch=job.epoch,
        epochs=job.epochs,
        epoch_starts=tuple(sorted(job.epoch_starts.values())),
        version=job.version,
        complete=job.complete,
        thinned=job.thinned,
        left_out=job.left_out,
    )


def _results(job: JobCurves, wanted: str = "") -> Iterator[MetricResult]:
    """The results of each metric, or of the one that is wanted, of its first replica, the most important first."""
    tasks: dict[str, dict[str, list[tuple[int, Points]]]] = {}
    for (name, stream), curve in job.curves.items():
        tasks.setdefault(name, {}).setdefault(stream.task, []).append((stream.run, curve.points()))
    for name in ordered(tasks) if not wanted else tasks.keys() & {wanted}:
        task = min(tasks[name], key=_task_order)
        if (metric := result(name, task, tasks[name][task])) is not None:
            yield metric


def _result_view(metric: MetricResult) -> MetricResultView:
    step, last = metric.last
    best_step, best = metric.best or (None, None)
    return MetricResultView(
        name=metric.name,
        task=metric.task,
        run=metric.run,
        step=step,
        last=last,
        best=best,
        best_step=best_step,
        lowest=metric.lowest,
        highest=metric.highest,
    )


def _series(name: str, task: str, run: int, points: Points, limit: int, start: float) -> MetricSeries:
    few = points.thinned(limit)
    return MetricSeries(
        name=name,
        task=task,
        run=run,
        steps=tuple(few.steps),
        values=tuple(few.values),
        times=tuple(round(time - start, 3) for time in few.times),
        total=len(points),
    )


def _rows(curves: Iterable[tuple[int, str, str, Points, int]]) -> Iterator[Row]:
    for run, task, name, points, count in curves:
        for (step, value, time), _ in zip(points, range(count), strict=False):
            yield run, task, name, step, utc_time(time).isoformat(), number(value)


def _task_order(task: str) -> tuple[int, int]:
    """The master first."""
    parsed = Task.parse(task)
    return TASK_TYPES.index(parsed.type), parsed.index
