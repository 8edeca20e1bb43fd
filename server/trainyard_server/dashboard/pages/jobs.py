"""Jobs page: the table of jobs with its filters, columns, groups and saved views."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import compress
from typing import Any
from urllib.parse import urlencode

from fastapi import Request

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.lines.progress import lower_is_better
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.own.experiments import Columns, Search
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.column_layout import COLUMNS_COOKIE, ColumnLayout
from trainyard_server.dashboard.run_rows import decimals_of, is_numeric, name_parts, reason_of, reason_place
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.views.job_groups import GROUPINGS
from trainyard_server.services.views.job_search import PAGE_SIZE, JobListing, JobSearchRequest, parsed
from trainyard_server.services.views.live_table import LiveTable
from trainyard_server.services.views.run_columns import FIXED, RunColumn, column_of, columns_of
from trainyard_server.services.views.run_table import RunTable
from trainyard_server.services.views.saved_views import MAX_VIEWS
from trainyard_server.storage.events.notifier import JOBS_TOPIC, PROGRESS_TOPIC, WAITING_TOPIC, JobChanges

router = Router()

_NO_FILTERS = ("sort", "page", "column", "group")
_EVERY_S = 15.0  # all that the table shows is published, but for what the time alone changes
_UNFINISHED = tuple(state for state in JobState if state not in FINAL_JOB_STATES)
CHIPS: Mapping[str, tuple[JobState, ...]] = {
    "Running": (JobState.RUNNING,),
    "Queued": (JobState.QUEUED,),
    "Preparing": (JobState.PREPARING,),
    "Succeeded": (JobState.SUCCEEDED,),
    "Failed": (JobState.FAILED,),
    "Cancelled": (JobState.CANCELLING, JobState.CANCELLED),
}
"""Filters of one click, and the states each of them selects."""

_CREATED = {
    "": "any time",
    "1h": "in the last hour",
    "24h": "in the last day",
    "7d": "in the last week",
    "30d": "in the last month",
}
_FIRST_JOB = """\
echo 'for n in range(1, 6): print(f"epoch {n}/5 loss={1 / n:.3f}")' > train.py
trainyard jobs submit training first --package-path train.py --stream-logs"""


def jobs_view(request: Request, cases: Cases, question: Search, chosen: Columns = (), group: str = "") -> View:
    address = Address(request.query_params.multi_items())
    visible = caller_of(request).visible
    fields = [field for field in chosen if field]
    layout = ColumnLayout.from_cookie(request.cookies.get(COLUMNS_COOKIE, ""))

    recent = cases.recent_jobs
    searched, problem = _valid(question, cases.backend.clock())
    live = LiveTable(cases.backend, cases.run_tables, recent, visible, searched, fields)

    def columns_of_page(projects: Sequence[str]) -> Sequence[RunColumn]:
        if fields:
            return live.table.columns
        has_projects = len(projects) > 1 and not question.project
        return layout.ordered(_with_project(live.table.columns) if has_projects else live.table.columns)

    def choices() -> tuple[Sequence[str], Sequence[str]]:
        found: tuple[Sequence[str], Sequence[str]] = recent.shared(
            ("choices", visible), lambda: cases.job_search.choices(visible)
        )
        return found

    def read() -> Mapping[str, Any]:
        return context(live.read())

    def read_again(published: frozenset[str]) -> Mapping[str, Any] | None:
        table = live.read_again(JobChanges.among(published))
        return None if table is None else context(table)

    def context(table: RunTable) -> Mapping[str, Any]:
        listing = table.listing
        projects, _ = choices()
        columns = columns_of_page(projects)
        return {
            **_shown(table, columns),
            "address": address,
            "chips": _chips(question, listing, address),
            "created": _CREATED,
            "first_job": _FIRST_JOB,
            "first": (question.page - 1) * PAGE_SIZE + 1,
            "grouped": cases.job_groups.grouped(visible, question, group, fields) if group and not problem else None,
            "is_filtered": address.is_filtered,
            "is_laid_out": bool(fields or layout.order or layout.widths),
            "listing": listing,
            "most_views": MAX_VIEWS,
            "page_size": PAGE_SIZE,
            "problem": problem,
            "projects": projects,
            "question": question,
            "table": table,
            "unfinished": _UNFINISHED,
            "widths": layout.widths_of(columns),
        }

    def read_rest() -> Mapping[str, Any]:
        projects, owners = choices()
        parameters, metrics = cases.run_tables.offered(visible)
        return {
            "further": _further({column.field for column in columns_of_page(projects)}, parameters, metrics),
            "groupings": _groupings(parameters, group),
            "owners": owners,
            "views": cases.saved_views.choices(visible, question.project, request.query_params.multi_items()),
        }

    return View(
        "jobs.html",
        read,
        (JOBS_TOPIC,),
        (PROGRESS_TOPIC, WAITING_TOPIC),
        _EVERY_S,
        " ".join(layout.order),
        read_rest,
        None if group else read_again,  # groups have the metrics of jobs that the page does not list
    )


def _valid(question: JobSearchRequest, now: datetime) -> tuple[JobSearchRequest, str]:
    """The question, without its filter if that alone is wrong, and what is wrong with it. Raises InvalidArgument."""
    try:
        parsed(question, now)
    except InvalidArgument as error:
        if not question.filter or any(violation.field != "filter" for violation in error.violations):
            raise
        return question.without_filter(), error.violations[0].description
    return question, ""


def _with_project(columns: Sequence[RunColumn]) -> Sequence[RunColumn]:
    """The columns with that of the project behind that of the job."""
    fields = [column.field for column in columns]
    fields.insert(fields.index("job") + 1, "project")
    return columns_of(fields)


def _shown(table: RunTable, columns: Sequence[RunColumn]) -> Mapping[str, Any]:
    """Context of the lines of the table: their columns, and the form of their values."""
    jobs = table.listing.jobs
    values = {column.field: [table.value(job, column) for job in jobs] for column in columns if column.kind != "fixed"}
    # Of jobs that have ended: the values of others change, and all rows with them if decimals did.
    has_ended = [job.state in FINAL_JOB_STATES for job in jobs]
    settled = {field: list(compress(some, has_ended)) for field, some in values.items()}
    newest = [curve.value for job in compress(jobs, has_ended) if (curve := job.metrics.curve())]
    return {
        "best": _best_values(columns, values),
        "columns": columns,
        "decimals": {field: decimals_of(some) for field, some in settled.items()} | {"metric": decimals_of(newest)},
        "name_parts": name_parts({job.job_id for job in jobs}),
        "numeric": {field for field, some in values.items() if is_numeric(some)},
        "reason_of": reason_of,
        "reason_place": reason_place(columns),
        "row_values": table.row_values,
        "shown": {column.field for column in columns},
    }


def _best_values(
    columns: Sequence[RunColumn], values: Mapping[str, Sequence[str | float | None]]
) -> Mapping[str, float]:
    """The best value on the page of each metric column whose name tells which is, by field."""
    best: dict[str, float] = {}
    for column in columns:
        numbers = [value for value in values.get(column.field, ()) if isinstance(value, float)]
        lower = column.lower_is_better
        if lower is not None and len(numbers) > 1 and min(numbers) < max(numbers):
            best[column.field] = min(numbers) if lower else max(numbers)
    return best


def _further(
    chosen: Collection[str], parameters: Sequence[str], metrics: Sequence[str]
) -> Mapping[str, Sequence[RunColumn]]:
    """The columns that can be added, by the heading above them."""
    fields: Mapping[str, Iterable[str]] = {
        "Parameters": (f"params.{name}" for name in parameters),
        "Metrics, last": (f"metrics.{name}" for name in metrics),
        "Metrics, best": (f"metrics.{name}.best" for name in metrics if lower_is_better(name) is not None),
        "Of every job": FIXED,
    }
    every = {heading: [column for name in names if (column := column_of(name))] for heading, names in fields.items()}
    offered = {heading: [column for column in some if column.field not in chosen] for heading, some in every.items()}
    return {heading: columns for heading, columns in offered.items() if columns}


def _groupings(parameters: Sequence[str], group: str) -> Sequence[str]:
    offered = [*GROUPINGS, *(f"params.{name}" for name in parameters)]
    return offered if not group or group in offered else [group, *offered]


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter by states: its name, its query, how many jobs it selects, and whether it is active."""

    word: str
    query: str
    count: int
    active: bool


def _chips(question: JobSearchRequest, listing: JobListing, address: "Address") -> list[Chip]:
    chosen = {state.upper() for state in question.states}
    all_of_them = sum(listing.counts.values())
    chips = [Chip("All", address.but(state=None, trouble=None), all_of_them, not chosen and not question.attention)]
    for word, states in CHIPS.items():
        count = sum(listing.counts.get(state, 0) for state in states)
        active = chosen == {state.value for state in states}
        chips.append(Chip(word, address.but(state=tuple(states), trouble=None), count, active))
    return chips


class Address:
    """Query of the page, and the queries of its links."""

    def __init__(self, items: list[tuple[str, str]]) -> None:
        self._items = items
        self.but = cache(self._but)  # templates repeat the same calls

    @property
    def is_filtered(self) -> bool:
        return any(value for name, value in self._items if name not in _NO_FILTERS)

    def _but(self, **changes: str | tuple[str, ...] | None) -> str:
        """The query with other values, from the first page; None leaves a parameter out."""
        dropped = {*changes, "page"}
        items = [(name, value) for name, value in self._items if name not in dropped and value]
        for name, value in changes.items():
            if value is not None:
                items += [(name, item) for item in ((value,) if isinstance(value, str) else value)]
        return "?" + urlencode(items)

    def sorted_by(self, order: str, now: str) -> str:
        """The query sorted by a column: times and what is better when higher descending first; reversed if it is the
        order already."""
        column = column_of(order)
        is_high_first = order in ("created", "started", "ended") or (column and column.lower_is_better is False)
        first = f"-{order}" if is_high_first else order
        other = order if first.startswith("-") else f"-{order}"
        return self.but(sort=other if now == first else first)

    @property
    def csv(self) -> str:
        """Address of the same jobs as CSV."""
        return f"/trainyard/v1/jobs.csv{self.but(group=None)}"

    def others(self, *names: str) -> list[tuple[str, str]]:
        """The values of other parameters than these, for the fields of a form."""
        return [(name, value) for name, value in self._items if name not in (*names, "page") and value]

    def with_filter(self, term: str) -> str:
        """The query of the jobs that a term finds as well, not grouped."""
        before = next((value for name, value in self._items if name == "filter" and value.strip()), "")
        return self.but(filter=f"({before}) AND {term}" if before else term, group=None)

    def without_label(self, label: str) -> str:
        return self.but(label=tuple(value for name, value in self._items if name == "label" and value != label))

    def with_label(self, label: str) -> str:
        labels = [value for name, value in self._items if name == "label" and value and value != label]
        return self.but(label=(*labels, label))


add_page(router, "/", Access.PERSON, "the list of jobs", jobs_view)
