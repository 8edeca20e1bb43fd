"""The list of jobs as people look at it: over all projects that they may see, with what each one is doing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.states import JobState
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Visible
from trainyard_server.domain.filters.time_bounds import time_bound
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.services.views.recent_jobs import RecentJobs
from trainyard_server.storage.db.queries import filters
from trainyard_server.storage.db.queries.job_queries import (
    JobList,
    JobListEntry,
    JobQuery,
    Order,
    ValueOrder,
    read_alone,
    shape_of,
)
from trainyard_server.storage.db.tables import studies

PAGE_SIZE = 50

ATTENTION_S = 24 * 3600.0
"""The time for which a failed job needs attention."""

_LONGEST_TEXT = 300  # characters; no job's name with its project is longer
_MOST_LABELS = 20


@dataclass(frozen=True, slots=True)
class JobSearchRequest:
    """A search as requested. `since` and `until` are times or ages; `page` counts from 1; `filter` is a text as in
    `storage.db.queries.filters`."""

    text: str = ""
    project: str = ""
    owner: str = ""
    states: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    attention: bool = False
    order: str = "-created"
    page: int = 1
    filter: str = ""

    def without_filter(self) -> Self:
        return replace(self, filter="")

    def on_page(self, page: int) -> Self:
        return replace(self, page=page)


@dataclass(frozen=True, slots=True)
class JobListing:
    """A page of the list. `total` counts the matching jobs, `counts` the jobs by state that match in all but the state.
    `more`: the counts are incomplete."""

    jobs: Sequence[JobListEntry]
    total: int
    counts: Mapping[JobState, int]
    more: bool
    attention_count: int
    pages: int
    now: datetime
    studies: Mapping[int, Mapping[JobState, int]]
    """The jobs that are studies, by key, with the number of their trials by state."""


class JobSearch:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def find(self, visible: Visible, question: JobSearchRequest, recent: RecentJobs | None = None) -> JobListing:
        """A page of the matching jobs of visible projects. Raises InvalidArgument with every violation.

        `recent`: shared with other open pages, for one that is kept up to date.
        """
        now = self._backend.clock()
        query, order, descending = parsed(question, now)
        shared = read_alone if recent is None else recent.shared
        with self._backend.store.read() as reader:
            jobs = JobList(reader, visible)
            result = jobs.find(
                query,
                order,
                descending=descending,
                offset=(question.page - 1) * PAGE_SIZE,
                limit=PAGE_SIZE,
                shared=shared,
            )
            since = now - timedelta(seconds=ATTENTION_S)
            attention_count = shared(("attention", visible), lambda: jobs.attention_count(since))
            of_studies = studies.among(reader, result.keys)
            entries = jobs.entries(result.keys) if recent is None else ()
        if recent is not None:
            entries = recent.entries(result.keys)
        total = result.total(query.states)
        return JobListing(
            jobs=entries,
            total=total,
            counts=result.counts,
            more=result.more,
            attention_count=attention_count,
            pages=max(1, -(-total // PAGE_SIZE)),
            now=now,
            studies=of_studies,
        )

    def again(self, listing: JobListing, changed: Collection[int], recent: RecentJobs) -> JobListing:
        """The same jobs as they are now; those with other keys have not changed."""
        entries = recent.entries([job.key for job in listing.jobs])
        of_studies = listing.studies
        if changed_studies := of_studies.keys() & changed:
            with self._backend.store.read() as reader:
                of_studies = {**of_studies, **studies.among(reader, changed_studies)}
        return replace(listing, jobs=entries, studies=of_studies, now=self._backend.clock())

    def shape(self, project: str, job_id: str) -> tuple[str, str]:
        """Tier and machines of the job, in short and in full. Raises NotFound."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            return shape_of(job.training_input.get("scaleTier"), job.gang)

    def choices(self, visible: Visible) -> tuple[Sequence[str], Sequence[str]]:
        """Every visible project with jobs, and every owner of those."""
        with self._backend.store.read() as reader:
            jobs = JobList(reader, visible)
            return jobs.projects(), jobs.owners()


def parsed(question: JobSearchRequest, now: datetime) -> tuple[JobQuery, Order | ValueOrder, bool]:
    """The query, its order, and whether that is descending. Raises InvalidArgument with every violation."""
    wrong: list[Violation] = []
    name = question.order.removeprefix("-")
    order = Order(name) if name in list(Order) else ValueOrder.of(name)
    if order is None:
        orders = f"{', '.join(Order)}, params.NAME, metrics.NAME and metrics.NAME.best"
        wrong.append(Violation("sort", f"{question.order!r} is not an order; orders are {orders}."))
    states = tuple(state.upper() for state in question.states if state)
    unknown = [state for state in states if state not in JobState.__members__]
    if unknown:
        wrong.append(
            Violation("state", f"{unknown[0]!r} is not a state; states are {', '.join(JobState.__members__)}.")
        )
    if question.page < 1 or question.page > 10_000_000:
        wrong.append(Violation("page", f"counts from 1; this is {question.page}."))
    if len(question.text) > _LONGEST_TEXT:
        message = f"may have {_LONGEST_TEXT} characters; this has {len(question.text)}."
        wrong.append(Violation("q", message))
    if len(question.labels) > _MOST_LABELS:
        message = f"may be given {_MOST_LABELS} times; this is {len(question.labels)} times."
        wrong.append(Violation("label", message))
    since = time_bound("since", question.since, now, wrong)
    until = time_bound("until", question.until, now, wrong)
    if wrong or order is None:
        raise InvalidArgument(wrong)
    labels = tuple(_label(label) for label in question.labels if label.strip())
    return (
        JobQuery(
            project=question.project.strip(),
            text=question.text.strip(),
            owner=question.owner.strip(),
            states=tuple(JobState[state] for state in states),
            labels=labels,
            created_after=since,
            created_before=until,
            attention_since=now - timedelta(seconds=ATTENTION_S) if question.attention else None,
            filter=filters.parse(question.filter),
        ),
        order,
        question.order.startswith("-"),
    )


def _label(text: str) -> tuple[str, str | None]:
    """`team=vision`, or `team` for any value."""
    name, separator, value = text.strip().partition("=")
    return name.strip(), value.strip() if separator else None
