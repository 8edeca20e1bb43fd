"""The list of jobs as people look at it: over all projects, with what each one is doing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.moments import moment_of
from trainyard_protocol.states import JobState
from trainyard_protocol.views import MetricsDigest, Verdict
from trainyard_server.context import Backend
from trainyard_server.services.jobs import known_job
from trainyard_server.storage.db.job_queries import JobFacts, JobList, Order, RunFacts, Wanted

PAGE_SIZE = 50

TROUBLE_S = 24 * 3600.0
"""How long a failed job counts as one to look at."""

_LONGEST_TEXT = 300  # characters; no job's name with its project is longer
_MOST_LABELS = 20


@dataclass(frozen=True, slots=True)
class Question:
    """What a reader asks for. `since` and `until` are times or how long ago; `page` counts from 1."""

    text: str = ""
    project: str = ""
    owner: str = ""
    states: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    trouble: bool = False
    order: str = "-created"
    page: int = 1


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job of the list. `trouble` is "", stalled, silent or restarted; `shape` says what it asks for, in short and
    in full."""

    job: JobFacts
    run: RunFacts | None
    shape: str
    shape_in_full: str
    verdict: Verdict | None
    trouble: str
    digest: MetricsDigest


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of the list. `total` counts the jobs that match, `counts` those of each state that match but for it;
    `more`: not all were counted."""

    jobs: Sequence[JobLine]
    total: int
    counts: Mapping[JobState, int]
    more: bool
    troubled: int
    pages: int
    now: datetime


class Listings:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def find(self, question: Question) -> Listing:
        """Raises InvalidArgument with everything that is wrong with the question."""
        now = self._backend.clock()
        wanted, order, descending = _understood(question, now)
        with self._backend.store.read() as reader:
            jobs = JobList(reader)
            found = jobs.find(
                wanted,
                order,
                descending=descending,
                offset=(question.page - 1) * PAGE_SIZE,
                limit=PAGE_SIZE,
            )
            keys = [job.key for job in found.jobs]
            runs, unwell = jobs.newest_runs(keys), jobs.troubled(keys)
            troubled = jobs.in_trouble(now - timedelta(seconds=TROUBLE_S))
        total = found.total(wanted.states)
        return Listing(
            jobs=[_line(job, runs.get(job.key), unwell.get(job.key, "")) for job in found.jobs],
            total=total,
            counts=found.counts,
            more=found.more,
            troubled=troubled,
            pages=max(1, -(-total // PAGE_SIZE)),
            now=now,
        )

    def shape(self, project: str, job_id: str) -> tuple[str, str]:
        """What the job asks for, in short and in full. Raises NotFound."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            return shape_of(job.training_input.get("scaleTier"), job.gang)

    def choices(self) -> tuple[Sequence[str], Sequence[str]]:
        """Every project and every owner that there are jobs of."""
        with self._backend.store.read() as reader:
            jobs = JobList(reader)
            return jobs.projects(), jobs.owners()


def shape_of(scale_tier: str | None, gang: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What a job asks for, as its tier and the numbers of its kinds of machines, and in full:
    `CUSTOM 1+4`, `1 × n1-standard-8 (master), 4 × n1-highmem-8 (worker)`. `gang` is a row's."""
    tier = scale_tier or "BASIC"
    kinds: dict[tuple[str, str], int] = {}
    accelerators = 0
    for replica in gang:
        kind = str(replica["task"]).partition("-replica-")[0]
        what = str(replica["machine_type"])
        if replica["accelerator_count"]:
            accelerators += int(replica["accelerator_count"])
            what += f" + {replica['accelerator_count']} {replica['accelerator_type']}"
        kinds[kind, what] = kinds.get((kind, what), 0) + 1
    counts: dict[str, int] = {}
    for (kind, _), count in kinds.items():
        counts[kind] = counts.get(kind, 0) + count
    short = tier if len(gang) == 1 else f"{tier} {'+'.join(map(str, counts.values()))}"
    if accelerators:
        short += f" · {accelerators} GPU"
    return short, ", ".join(f"{count} × {what} ({kind})" for (kind, what), count in kinds.items())


def _line(job: JobFacts, run: RunFacts | None, unwell: str) -> JobLine:
    short, full = shape_of(job.scale_tier, job.gang)
    over = job.ended_at is not None
    return JobLine(
        job=job,
        run=run,
        shape=short,
        shape_in_full=full,
        verdict=Verdict.model_validate(job.verdict) if job.verdict else None,
        trouble=unwell or ("restarted" if job.retries_used and not over else ""),
        digest=MetricsDigest.model_validate((run.metrics if run is not None else None) or {}),
    )


def _understood(question: Question, now: datetime) -> tuple[Wanted, Order, bool]:
    wrong: list[Violation] = []
    order = question.order.removeprefix("-")
    if order not in list(Order):
        wrong.append(Violation("sort", f"{question.order!r} is no order; orders are {', '.join(Order)}."))
    states = tuple(state.upper() for state in question.states if state)
    unknown = [state for state in states if state not in JobState.__members__]
    if unknown:
        wrong.append(
            Violation(
                "state", f"{unknown[0]!r} is not a state; states are {', '.join(JobState.__members__)}."
            )
        )
    if question.page < 1 or question.page > 10_000_000:
        wrong.append(Violation("page", f"counts from 1; this is {question.page}."))
    if len(question.text) > _LONGEST_TEXT:
        said = f"may have {_LONGEST_TEXT} characters; this has {len(question.text)}."
        wrong.append(Violation("q", said))
    if len(question.labels) > _MOST_LABELS:
        said = f"may be asked for {_MOST_LABELS} times; this does {len(question.labels)} times."
        wrong.append(Violation("label", said))
    moments: dict[str, datetime | None] = {}
    for name, said in (("since", question.since), ("until", question.until)):
        try:
            moments[name] = moment_of(said, now) if said.strip() else None
        except ValueError as error:
            wrong.append(Violation(name, f"{error}."))
    if wrong:
        raise InvalidArgument(wrong)
    labels = tuple(_label(label) for label in question.labels if label.strip())
    return (
        Wanted(
            project=question.project.strip(),
            text=question.text.strip(),
            owner=question.owner.strip(),
            states=tuple(JobState[state] for state in states),
            labels=labels,
            created_after=moments["since"],
            created_before=moments["until"],
            trouble_since=now - timedelta(seconds=TROUBLE_S) if question.trouble else None,
        ),
        Order(order),
        question.order.startswith("-"),
    )


def _label(text: str) -> tuple[str, str | None]:
    """`team=vision`, or `team` for any value."""
    name, separator, value = text.strip().partition("=")
    return name.strip(), value.strip() if separator else None
