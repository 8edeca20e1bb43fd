"""Jobs page: the table of jobs with its filters, columns, groups and saved views."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlencode

from fastapi import Request

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.lines.progress import lower_is_better
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.own.experiments import Columns, Search
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.views.job_groups import GROUPINGS
from trainyard_server.services.views.job_search import PAGE_SIZE, JobListing, JobSearchRequest
from trainyard_server.services.views.run_columns import FIXED, RunColumn, column_of
from trainyard_server.services.views.run_table import RunTable
from trainyard_server.services.views.saved_views import MAX_VIEWS
from trainyard_server.storage.events.notifier import JOBS_TOPIC, PROGRESS_TOPIC

router = Router()

_NO_FILTERS = ("sort", "page", "column", "group")
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


def jobs_view(request: Request, cases: Cases, question: Search, columns: Columns = (), group: str = "") -> View:
    address = Address(request.query_params.multi_items())
    visible = caller_of(request).visible
    fields = [field for field in columns if field]

    def read() -> Mapping[str, Any]:
        problem = ""
        try:
            table = cases.run_tables.table(visible, question, fields)
        except InvalidArgument as error:
            if not question.filter or any(violation.field != "filter" for violation in error.violations):
                raise
            problem = error.violations[0].description
            table = cases.run_tables.table(visible, question.without_filter(), fields)
        listing = table.listing
        projects, owners = cases.job_search.choices(visible)
        parameters, metrics = cases.run_tables.offered(visible)
        chosen = {column.field for column in table.columns}
        return {
            "address": address,
            "best": _best_values(table),
            "chips": _chips(question, listing, address),
            "columns": table.columns,
            "first": (question.page - 1) * PAGE_SIZE + 1,
            "further": _further(chosen, parameters, metrics),
            "grouped": cases.job_groups.grouped(visible, question, group, fields) if group and not problem else None,
            "groupings": _groupings(parameters, group),
            "is_filtered": address.is_filtered,
            "listing": listing,
            "most_views": MAX_VIEWS,
            "owners": owners,
            "page_size": PAGE_SIZE,
            "problem": problem,
            "projects": projects,
            "question": question,
            "table": table,
            "unfinished": _UNFINISHED,
            "views": cases.saved_views.choices(visible, question.project, request.query_params.multi_items()),
        }

    return View("jobs.html", read, (JOBS_TOPIC, PROGRESS_TOPIC))


def _best_values(table: RunTable) -> Mapping[str, float]:
    """The best value on the page of each metric column whose name tells which is, by field."""
    best: dict[str, float] = {}
    for column in table.columns:
        values = [value for job in table.listing.jobs if isinstance(value := table.value(job, column), float)]
        lower = column.lower_is_better
        if lower is not None and len(values) > 1 and min(values) < max(values):
            best[column.field] = min(values) if lower else max(values)
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
