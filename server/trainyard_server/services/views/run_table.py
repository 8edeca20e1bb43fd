"""Run table: a page of jobs with columns of their parameters and metrics, and the same as CSV."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from trainyard_protocol.answers.origin import OriginSummary
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Visible
from trainyard_server.services.views.job_search import JobListing, JobSearch, JobSearchRequest
from trainyard_server.services.views.recent_jobs import RecentJobs
from trainyard_server.services.views.run_columns import DEFAULT, RunColumn, columns_of, number_in
from trainyard_server.storage.db.queries import value_filters
from trainyard_server.storage.db.queries.job_queries import JobListEntry
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import job_values, origins
from trainyard_server.storage.db.tables.job_values import JobValues

OFFERED = 200
"""Limit of the parameters that can be chosen as columns, and of the metrics."""

_VALUE_KINDS = ("parameter", "metric")
_AUTOMATIC = 4  # parameters among the default columns, as far as a window of 1280 pixels has room for them:
_ROOM = 54  # characters of the longest name and of these parameters
_LONGEST_NAME = 40
_PADDING = 2
_SHORTEST_VALUE = 6
_OF_EVERY_ROW = ("project", "job", "created")  # the first columns of CSV


@dataclass(frozen=True, slots=True)
class RunTable:
    """A page of jobs with the values of its columns."""

    listing: JobListing
    columns: Sequence[RunColumn]
    values: Mapping[int, JobValues]
    origins: Mapping[int, OriginSummary]

    def value(self, job: JobListEntry, column: RunColumn) -> str | float | None:
        """The value of a column that is not fixed; None where the job has none."""
        if column.kind == "label":
            return job.labels.get(column.name)
        if column.kind == "parameter":
            return self.values[job.key].parameters.get(column.name)
        if column.number.startswith("@"):
            return _at_step(job, column.name, int(column.number[1:]))
        return number_in(self.values[job.key], column)

    def row_values(self, job: JobListEntry) -> Mapping[str, object]:
        """All of the table that the line of a job shows."""
        return {
            "job": job,
            "values": self.values.get(job.key),
            "origin": self.origins.get(job.key),
            "trials": self.listing.studies.get(job.key),
        }


class RunTables:
    def __init__(self, backend: Backend, job_search: JobSearch) -> None:
        self._backend = backend
        self._job_search = job_search

    def table(
        self, visible: Visible, question: JobSearchRequest, fields: Sequence[str], recent: RecentJobs | None = None
    ) -> RunTable:
        """A page of the matching jobs. Without fields it has default columns. `recent` as for `JobSearch.find`. Raises
        InvalidArgument."""
        columns = columns_of(fields)
        listing = self._job_search.find(visible, question, recent)
        keys = [job.key for job in listing.jobs]
        with self._backend.store.read() as reader:
            columns = columns or _default_columns(reader, listing.jobs)
            values, recorded = _values(reader, keys, columns)
        return RunTable(listing, columns, values, recorded)

    def again(self, table: RunTable, changed: Collection[int], recent: RecentJobs) -> RunTable:
        """The same jobs as they are now; those with other keys have not changed."""
        listing = self._job_search.again(table.listing, changed, recent)
        with self._backend.store.read() as reader:
            values, recorded = _values(reader, changed, table.columns)
        return replace(table, listing=listing, values={**table.values, **values}, origins={**table.origins, **recorded})

    def offered(self, visible: Visible) -> tuple[Sequence[str], Sequence[str]]:
        """The names of parameters and of metrics that the newest visible jobs have."""
        with self._backend.store.read() as reader:
            return job_values.names(reader, visible, OFFERED)

    def rows(
        self, visible: Visible, question: JobSearchRequest, fields: Sequence[str], limit: int
    ) -> Iterator[list[str]]:
        """The matching jobs as texts, a header first, at most `limit`. Raises InvalidArgument at once."""
        return self._rows(visible, question, limit, self.table(visible, question, fields))

    def _rows(self, visible: Visible, question: JobSearchRequest, limit: int, table: RunTable) -> Iterator[list[str]]:
        fields = [column.field for column in table.columns]
        yield ["project", "jobId", "createTime", *(field for field in fields if field not in _OF_EVERY_ROW)]
        page, sent = question.page, 0
        while table.listing.jobs and sent < limit:
            for job in table.listing.jobs[: limit - sent]:
                yield _row(table, job)
            sent += len(table.listing.jobs)
            page += 1
            table = self.table(visible, question.on_page(page), fields)


def _values(
    reader: Reader, keys: Collection[int], columns: Sequence[RunColumn]
) -> tuple[Mapping[int, JobValues], Mapping[int, OriginSummary]]:
    """The values and the origins that the columns show of these jobs."""
    parameters, metrics = ({column.name for column in columns if column.kind == kind} for kind in _VALUE_KINDS)
    has_origin = any(column.field == "origin" for column in columns)
    values = job_values.values_of(reader, keys, parameters, metrics)
    return values, origins.summaries(reader, keys) if has_origin else {}


def _default_columns(reader: Reader, jobs: Sequence[JobListEntry]) -> list[RunColumn]:
    names = job_values.differing_parameters(reader, [job.key for job in jobs], _AUTOMATIC)
    room = _ROOM - min(_LONGEST_NAME, max((len(job.job_id) for job in jobs), default=0))
    widths = accumulate(max(len(name), _SHORTEST_VALUE) + _PADDING for name in names)
    fields = list(DEFAULT)
    fields[2:2] = [value_filters.PARAMETERS + name for name, width in zip(names, widths, strict=True) if width <= room]
    return columns_of(fields)


def _at_step(job: JobListEntry, name: str, step: int) -> float | None:
    """The last kept point of the metric up to a step; None before its first one."""
    curve = next((curve for curve in job.metrics.metrics if curve.name == name), None)
    if curve is None:
        return None
    points = [*curve.points, (curve.step, curve.value)]
    return next((float(value) for at, value in reversed(points) if at <= step), None)


def _row(table: RunTable, job: JobListEntry) -> list[str]:
    fixed = {
        "state": job.state.value,
        "shape": job.shape[1],
        "owner": job.owner,
        "started": job.started_at.isoformat() if job.started_at else "",
        "ended": job.ended_at.isoformat() if job.ended_at else "",
        "time": _seconds(job, table),
        "progress": "" if job.step is None else str(job.step),
        "metric": "" if (curve := job.metrics.curve()) is None else f"{curve.name}={curve.value}",
        "origin": origin.text if (origin := table.origins.get(job.key)) else "",
        "labels": " ".join(f"{name}={value}" for name, value in job.labels.items()),
        "note": job.note,
    }
    cells = [
        fixed[column.name] if column.kind == "fixed" else _text(table.value(job, column))
        for column in table.columns
        if column.field not in _OF_EVERY_ROW
    ]
    return [job.project, job.job_id, job.created_at.isoformat(), *cells]


def _seconds(job: JobListEntry, table: RunTable) -> str:
    if job.started_at is None:
        return ""
    return str(round(((job.ended_at or table.listing.now) - job.started_at).total_seconds(), 3))


def _text(value: str | float | None) -> str:
    return "" if value is None else str(value)
