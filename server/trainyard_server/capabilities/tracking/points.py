"""Points of metrics: stored, thinned where a job has too many, and read again."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

from trainyard_protocol.answers.metrics import number
from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_protocol.lines.progress import MAX_NAME, MAX_STEP
from trainyard_server.capabilities.tracking import store
from trainyard_server.capabilities.tracking.messages import LoggedMetric
from trainyard_server.capabilities.tracking.notes import NotKept
from trainyard_server.capabilities.tracking.store import LoggedPoint, StoredPoint, ValueKind
from trainyard_server.capabilities.tracking.targets import RunTarget
from trainyard_server.capabilities.tracking.thinning import rows_of, thinned
from trainyard_server.context import Backend
from trainyard_server.domain.metrics.series import Points
from trainyard_server.domain.metrics.sources import MetricSource
from trainyard_server.domain.metrics.summary import MetricSummary
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.tables import job_values

MAX_HISTORY = 25_000
"""Limit of the points in one answer."""

MAX_SCANNED = 100_000
"""Limit of the points that one call looks at."""

_ROWS_AT_ONCE = 20
_COMPARED_ROWS = 20
_THINNED_POINTS, _THINNED_ROWS = 8000, 2000  # that one call rewrites

Json = dict[str, Any]


class PointLimits(NamedTuple):
    """Limits of the stored points of one metric, and of all metrics of one job."""

    of_metric: int
    of_job: int


class _NumberedPoints(NamedTuple):
    """A row of points, and the number of the job's run that has logged them."""

    number: int
    run: int
    points: list[StoredPoint]


def add(
    writer: Writer, target: RunTarget, metrics: Sequence[LoggedMetric], now_ms: int, limits: PointLimits, *, room: bool
) -> set[NotKept]:
    """Record points with the values that jobs are found by. `room`: the disk has room for points. Returns what is not
    kept. Hold the lock of the job's row. Raises InvalidArgument."""
    key, not_kept = target.job.key, set[NotKept]()
    counts = store.logged_counts(writer, key)
    points = list[LoggedPoint]()
    for metric in metrics:
        point = _point(metric, target.prefix, now_ms)
        if len(point.name) > MAX_NAME or not point.name.isprintable():
            not_kept.add(NotKept.NAMES)
        elif point.name not in counts and len(counts) >= job_values.MAX_OF_A_JOB:
            not_kept.add(NotKept.METRICS)
        else:
            counts.setdefault(point.name, 0)
            points.append(point)
    points = _without_repeated(writer, target, points)
    if not points:
        return not_kept
    job_values.record(writer, {key: _summaries(points, target.run)})
    if not room:
        return not_kept | {NotKept.DISK}
    store.add_points(writer, key, target.run, points)
    for point in points:
        counts[point.name] += 1
    changed = {point.name for point in points}
    crowded = {name for name, count in counts.items() if count > limits.of_metric}
    if crowded or sum(counts.values()) > limits.of_job:
        not_kept.add(NotKept.POINTS)
        changed |= _thin(writer, key, counts, None if sum(counts.values()) > limits.of_job else crowded)
    store.set_counts(writer, key, {name: counts[name] for name in changed})
    return not_kept


def _without_repeated(writer: Writer, target: RunTarget, points: Sequence[LoggedPoint]) -> list[LoggedPoint]:
    """The points without those that the job has already, as MLflow keeps each once: autologging sends some again. Only
    points that are not after the last one of their metric are looked for, among the newest rows."""
    key = target.job.key
    last = job_values.values_of(writer, [key], (), {point.name for point in points})[key].metrics
    stored = set[tuple[object, ...]]()
    if any(_is_earlier(point, last.get(point.name), target.run) for point in points):
        rows = store.newest_rows(writer, key, target.run, _COMPARED_ROWS)
        stored = {
            _identity(name, step, float(value), time_ms) for row in rows for name, step, value, time_ms in row.points
        }
    distinct = {_identity(*point): point for point in points}
    return [point for identity, point in distinct.items() if identity not in stored]


def _identity(name: object, step: object, value: float, time_ms: object) -> tuple[object, ...]:
    """The values by which points are the same: NaN is not equal to itself."""
    return name, step, repr(value), time_ms


def _is_earlier(point: LoggedPoint, last: MetricSummary | None, run: int) -> bool:
    return last is not None and last.run == run and (point.step, point.time_ms) <= (last.step, last.time_ms)


def history(backend: Backend, target: RunTarget, metric: str, limit: int, page_token: str) -> Iterator[str]:
    """Parts of an answer with the logged points of a metric, in the order in which they were logged: at most `limit`,
    and those of a bounded number that are looked at. Raises InvalidArgument at once."""
    return _history(backend, target, metric, max(1, min(limit, MAX_HISTORY)), _start(page_token))


def printed_history(points: Points, metric: str, limit: int, page_token: str) -> Iterator[str]:
    """Parts of an answer with the points of a metric that is not logged: that of a curve. Raises InvalidArgument at
    once."""
    _, first = _start(page_token)
    return _printed_history(points, metric, first, first + max(1, min(limit, MAX_HISTORY)))


def _printed_history(points: Points, metric: str, first: int, end: int) -> Iterator[str]:
    yield '{"metrics":['
    for at, (step, value, time) in enumerate(islice(points, first, min(end, len(points)))):
        yield _history_text(metric, [metric, step, value, round(time * 1000)], comma=at > 0)
    yield f'],"next_page_token":"1.{end}"}}' if end < len(points) else "]}"


def _history(backend: Backend, target: RunTarget, metric: str, limit: int, start: tuple[int, int]) -> Iterator[str]:
    name, (number_after, skipped) = target.prefix + metric, start
    found, scanned, more = 0, 0, ""
    yield '{"metrics":['
    while not more:
        with backend.store.read() as reader:
            rows = [
                (row.number, row.points)
                for row in store.points_after(reader, target.job.key, number_after - 1, _ROWS_AT_ONCE)
            ]
        texts = []
        for row_number, points in rows:
            first = skipped if row_number == number_after else 0
            for index, point in enumerate(points[first:], first):
                if found >= limit:
                    more = f"{row_number}.{index}"
                    break
                if point[0] == name:
                    found += 1
                    texts.append(_history_text(metric, point, comma=found > 1))
            scanned += len(points)
            if not more and scanned >= MAX_SCANNED:
                more = f"{row_number + 1}.0"
            if more:
                break
        yield "".join(texts)
        if len(rows) < _ROWS_AT_ONCE:
            break
        number_after, skipped = rows[-1][0] + 1, 0
    yield f'],"next_page_token":"{more}"}}' if more else "]}"


def _history_text(metric: str, point: StoredPoint, *, comma: bool) -> str:
    _, step, value, time_ms = point
    value_json = {"key": metric, "value": number(float(value)), "timestamp": time_ms, "step": step}
    return ("," if comma else "") + json.dumps(value_json, allow_nan=False)


def _start(page_token: str) -> tuple[int, int]:
    if not page_token:
        return 1, 0
    row, _, index = page_token.partition(".")
    if not (row.isdecimal() and index.isdecimal() and len(page_token) < 24 and page_token.isascii()):
        raise InvalidArgument(Violation("page_token", f"is none of this server: {quoted(page_token)}."))
    return int(row), int(index)


def _thin(writer: Writer, key: int, counts: dict[str, int], names: set[str] | None) -> set[str]:
    """Rewrite the next rows, after those of the call before: a bounded number. Returns the metrics with fewer points.
    `names`: the metrics with too many, or all (None)."""
    mark = store.value(writer, key, store.OWN, ValueKind.THINNING, "row")
    after = int(mark.value) if mark is not None else 0
    rows, is_end = _next_rows(writer, key, after)
    if is_end and after and sum(len(row.points) for row in rows) < _THINNED_POINTS // 2:
        rows, _ = _next_rows(writer, key, 0)
    store.set_mark(writer, key, ValueKind.THINNING, "row", str(rows[-1].number))
    points = [point for row in rows for point in row.points]
    few = thinned(points, names)
    changed = set()
    for name, less in _differences(points, few).items():
        counts[name] = max(0, counts.get(name, 0) - less)
        changed.add(name)
    if len(few) < len(points) or len(rows) > len(rows_of(few)):
        store.replace_points(writer, key, rows[0].run, [row.number for row in rows], rows_of(few))
    return changed


def _next_rows(writer: Writer, key: int, after: int) -> tuple[list[_NumberedPoints], bool]:
    """The next rows of one run of the job, a bounded number, and whether these are all."""
    rows, total = list[_NumberedPoints](), 0
    stored = store.points_after(writer, key, after, _THINNED_ROWS)
    for row in stored:
        if rows and (row.run != rows[0].run or total + len(row.points) > _THINNED_POINTS):
            return rows, False
        rows.append(_NumberedPoints(row.number, row.run, row.points))
        total += len(row.points)
    return rows, len(stored) < _THINNED_ROWS


def _differences(before: Sequence[StoredPoint], after: Sequence[StoredPoint]) -> dict[str, int]:
    less: dict[str, int] = {}
    for points, sign in ((before, 1), (after, -1)):
        for point in points:
            less[str(point[0])] = less.get(str(point[0]), 0) + sign
    return {name: count for name, count in less.items() if count}


def _point(metric: LoggedMetric, prefix: str, now_ms: int) -> LoggedPoint:
    if not -MAX_STEP <= metric.step <= MAX_STEP:
        raise InvalidArgument(Violation("step", f"is at most {MAX_STEP}; this is {metric.step}."))
    return LoggedPoint(f"{prefix}{metric.key}", max(0, metric.step), metric.value, metric.time_ms(now_ms))


def _summaries(points: Sequence[LoggedPoint], run: int) -> dict[str, MetricSummary]:
    by_name = sorted(points, key=lambda point: point.name)
    summaries = {}
    for name, group in groupby(by_name, key=lambda point: point.name):
        of_name = list(group)
        last = max(of_name, key=lambda point: (point.step, point.time_ms, point.value))
        summaries[name] = MetricSummary.of(
            last.step,
            last.value,
            [point.value for point in of_name],
            source=MetricSource.LOGGED,
            time_ms=last.time_ms,
            run=run,
        )
    return summaries
