"""Jobs page: the list of jobs with its filters."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request

from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.views.job_search import PAGE_SIZE, JobListing, JobSearchRequest
from trainyard_server.storage.events.notifier import JOBS_TOPIC, PROGRESS_TOPIC

router = Router()

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


def jobs_view(
    request: Request,
    cases: Cases,
    q: str = "",
    project: str = "",
    owner: str = "",
    state: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI makes a new one for each request
    label: Annotated[list[str], Query()] = [],  # noqa: B006
    since: str = "",
    until: str = "",
    needs_attention: Annotated[bool, Query(alias="trouble")] = False,
    sort: str = "-created",
    page: int = 1,
) -> View:
    question = JobSearchRequest(
        q, project, owner, tuple(state), tuple(label), since, until, needs_attention, sort, page
    )
    address = Address(request.query_params.multi_items())
    visible = caller_of(request).visible

    def read() -> Mapping[str, Any]:
        listing = cases.job_search.find(visible, question)
        projects, owners = cases.job_search.choices(visible)
        return {
            "address": address,
            "chips": _chips(question, listing, address),
            "first": (question.page - 1) * PAGE_SIZE + 1,
            "is_filtered": address.is_filtered,
            "listing": listing,
            "owners": owners,
            "page_size": PAGE_SIZE,
            "projects": projects,
            "question": question,
            "unfinished": _UNFINISHED,
        }

    return View("jobs.html", read, (JOBS_TOPIC, PROGRESS_TOPIC))


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
        return any(value for name, value in self._items if name not in ("sort", "page"))

    def _but(self, **changes: str | tuple[str, ...] | None) -> str:
        """The query with other values, from the first page; None leaves a parameter out."""
        dropped = {*changes, "page"}
        items = [(name, value) for name, value in self._items if name not in dropped and value]
        for name, value in changes.items():
            if value is not None:
                items += [(name, item) for item in ((value,) if isinstance(value, str) else value)]
        return "?" + urlencode(items)

    def sorted_by(self, order: str, now: str) -> str:
        """The query sorted by a column: times descending first; reversed if it is the order already."""
        first = f"-{order}" if order in ("created", "started", "ended") else order
        other = order if first.startswith("-") else f"-{order}"
        return self.but(sort=other if now == first else first)

    def without_label(self, label: str) -> str:
        return self.but(label=tuple(value for name, value in self._items if name == "label" and value != label))

    def with_label(self, label: str) -> str:
        labels = [value for name, value in self._items if name == "label" and value and value != label]
        return self.but(label=(*labels, label))


add_page(router, "/", Access.PERSON, "the list of jobs", jobs_view)
