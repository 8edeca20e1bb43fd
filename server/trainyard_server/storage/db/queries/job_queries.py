"""Queries of job lists, over all projects that somebody may see.

Covering indexes give the keys of a page, and only those jobs are read, so that a page takes about as long with fifty
thousand jobs as with fifty.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, CompoundSelect, Select, and_, case, func, or_, select, union
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.answers.metrics import MetricsDigest
from trainyard_protocol.states import JobState, ReplicaState
from trainyard_server.domain.access.permissions import Visible, is_visible
from trainyard_server.domain.filters.filter_syntax import Expression
from trainyard_server.domain.scheduling.resources import needs
from trainyard_server.storage.db.base.models import (
    JobLabelRow,
    JobMetricRow,
    JobParameterRow,
    JobRow,
    ReplicaRow,
    RunRow,
)
from trainyard_server.storage.db.queries import filters, value_filters
from trainyard_server.storage.db.queries.job_inputs import gang_from_json
from trainyard_server.storage.db.queries.reader import (
    LIVE_RUNS,
    NO_STUDY,
    UNFINISHED_JOBS,
    Label,
    Reader,
    jobs_labelled,
)


class Order(StrEnum):
    """The sort keys of a list. Equal jobs are sorted by creation, in the same direction."""

    CREATED = "created"
    NAME = "name"
    STATE = "state"
    OWNER = "owner"
    STARTED = "started"
    ENDED = "ended"


class ValueOrder(NamedTuple):
    """The order by a parameter, or by a number of a metric. It has only the jobs that have one."""

    field: str

    @classmethod
    def of(cls, text: str) -> "ValueOrder | None":
        """The order by a field such as `params.lr` or `metrics.loss.best`; None for another field."""
        field = value_filters.value_field(text)
        is_value = field is not None and field.startswith((value_filters.PARAMETERS, value_filters.METRICS))
        return cls(field) if field is not None and is_value else None


SharedRead = Callable[[Hashable, Callable[[], Any]], Any]
"""Return what the function reads, or what it has read for another search of the same name."""


def read_alone(_name: Hashable, read: Callable[[], Any]) -> Any:
    """Read for one search."""
    return read()


COUNTED = 1_000
"""Limit of counted jobs where each of them must be read."""

NO_TRIAL = JobRow.study_key.is_(None)
"""Selects what a list shows. The condition of the indexes of lists."""

_ORDER_COLUMNS = {
    Order.CREATED: JobRow.created_at,
    Order.NAME: JobRow.name,
    Order.STATE: JobRow.state,
    Order.OWNER: JobRow.owner,
    Order.STARTED: JobRow.started_at,
    Order.ENDED: JobRow.ended_at,
}


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Conditions of a list. `text` is part of an id, in any case; a label without a value matches all of that name.

    `attention_since`: only jobs that failed after that time, and unfinished ones that are stalled, silent or restarted.
    `filter`: as in `filters`. `trials`: trials in place of jobs and studies, as where the filter names a study.
    """

    project: str = ""
    text: str = ""
    owner: str = ""
    states: tuple[JobState, ...] = ()
    labels: tuple[Label, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    attention_since: datetime | None = None
    filter: Expression | None = None
    trials: bool = False

    def of_trials(self) -> "JobQuery":
        return replace(self, trials=True)

    def in_any_state(self) -> "JobQuery":
        return replace(self, states=())

    @property
    def is_indexed(self) -> bool:
        """Whether an index alone counts the jobs."""
        searched = self.text or self.labels or self.attention_since or self.filter or self.trials
        return not (searched or (self.project and self.owner))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobListEntry:
    """A job as lists show it. Only the columns that they show are read: most of the time goes into parsing JSON.

    `study_key`: of a trial, that of its study. `run` is the number of the latest run, None before the first. `activity`
    is from that run; the steps, `metrics` and `replica_started_at` are from its primary replica. `attention` is "",
    stalled, silent or restarted.
    """

    key: int
    project: str
    job_id: str
    owner: str
    state: JobState
    priority: int
    labels: Mapping[str, str]
    gang: Sequence[Mapping[str, Any]]
    scale_tier: str | None
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    waiting: str
    position: int
    verdict: Verdict | None
    error_message: str
    note: str
    run: int | None = None
    activity: str = ""
    first_step: int | None = None
    step: int | None = None
    steps: int | None = None
    step_at: datetime | None = None
    replica_started_at: datetime | None = None
    metrics: MetricsDigest
    attention: str = ""
    study_key: int | None = None

    @property
    def shape(self) -> tuple[str, str]:
        """Tier and machines of the gang, in short and in full."""
        return shape_of(self.scale_tier, self.gang)

    @property
    def needs(self) -> str:
        """The resources of the whole gang."""
        return needs(gang_from_json(self.gang))


@dataclass(frozen=True, slots=True)
class JobQueryResult:
    """The keys of a page of jobs, and the number of jobs in each state, whatever states were requested. `more`: the
    count stopped at COUNTED."""

    keys: Sequence[int]
    counts: Mapping[JobState, int]
    more: bool

    def total(self, states: Sequence[JobState]) -> int:
        return sum(count for state, count in self.counts.items() if not states or state in states)


class JobList:
    """Queries over one consistent view of the database, about visible projects alone. No trial is in a list; in the
    queue are trials in place of their studies, which wait for nothing."""

    def __init__(self, reader: Reader, visible: Visible) -> None:
        self._reader = reader
        self._session: Session = reader.session
        self._visible = visible

    def find(
        self,
        conditions: JobQuery,
        order: Order | ValueOrder,
        *,
        descending: bool,
        offset: int,
        limit: int,
        shared: SharedRead = read_alone,
    ) -> JobQueryResult:
        """A page of the matches. `shared` reads what other searches ask for, too."""
        search = _Search(self._reader, conditions)
        is_indexed = conditions.is_indexed and not isinstance(order, ValueOrder)
        if is_indexed and not (conditions.owner and self._visible is not None):
            name = ("counts", self._visible, conditions.in_any_state())
            counts, more = shared(name, lambda: self._counts(search)), False
            keys = self._page(search, order, descending=descending, offset=offset, limit=limit)
        else:
            # One scan of the matches for both counts and page.
            matches = self.matches(conditions, order, descending=descending, search=search)
            counts, more = Counter(state for _, state in matches), len(matches) > COUNTED
            these = [key for key, state in matches if not conditions.states or state in conditions.states]
            keys = these[offset : offset + limit]
            if more and len(keys) < limit:
                keys = self._page(search, order, descending=descending, offset=offset, limit=limit)
        return JobQueryResult(keys, counts, more)

    def is_any_match(self, conditions: JobQuery, keys: Collection[int]) -> bool:
        """Whether any of these jobs matches, in any state."""
        query = _Search(self._reader, conditions, of_few=True).where(select(JobRow.key), with_states=False)
        found = self._session.scalar(self._limited(query).where(JobRow.key.in_(keys)).limit(1))
        return found is not None

    def matches(
        self, conditions: JobQuery, order: Order | ValueOrder, *, descending: bool, search: "_Search | None" = None
    ) -> Sequence[tuple[int, JobState]]:
        """Keys and states of the matches in any state, at most one more than are counted."""
        chosen = search or _Search(self._reader, conditions)
        query = self._limited(chosen.where(select(JobRow.key, JobRow.state), with_states=False))
        rows = self._session.execute(self._ordered(query, order, descending).limit(COUNTED + 1))
        return [(key, state) for key, state in rows]

    def values_of_field(self, keys: Sequence[int], field: str) -> dict[int, str]:
        """The owner, project, state or study of each of these jobs, or its parameter or label; "" without one.

        `field` is one of these words, `params.NAME` or `labels.NAME`.
        """
        study = aliased(JobRow)
        columns: dict[str, ColumnElement[Any]] = {
            "owner": JobRow.owner.expression,
            "project": JobRow.project.expression,
            "state": JobRow.state.expression,
            "study": select(study.job_id).where(study.key == JobRow.study_key).scalar_subquery(),
        }
        if field in columns:
            query = select(JobRow.key, columns[field]).where(JobRow.key.in_(keys))
        elif field.startswith(value_filters.PARAMETERS):
            name = field.removeprefix(value_filters.PARAMETERS)
            query = select(JobParameterRow.job_key, JobParameterRow.value)
            query = query.where(JobParameterRow.job_key.in_(keys), JobParameterRow.name == name)
        else:
            query = select(JobLabelRow.job_key, JobLabelRow.value)
            query = query.where(JobLabelRow.job_key.in_(keys), JobLabelRow.name == field.removeprefix("labels."))
        values = dict.fromkeys(keys, "")
        values.update({key: str(value or "") for key, value in self._session.execute(query)})
        return values

    def queue(self, offset: int, limit: int, *, trials: bool = True) -> Sequence[JobListEntry]:
        """Queued jobs by their positions; those without a position come last. Without `trials`: studies instead."""
        order = (case((JobRow.position > 0, 0), else_=1), JobRow.position, JobRow.key)
        waiting = select(JobRow.key).where(JobRow.state == JobState.QUEUED, NO_STUDY if trials else NO_TRIAL)
        keys = self._limited(waiting).order_by(*order)
        return self.entries(self._session.scalars(keys.offset(offset).limit(limit)).all())

    def queue_length(self) -> int:
        """Number of jobs in the queue."""
        waiting = select(func.count(JobRow.key)).where(JobRow.state == JobState.QUEUED, NO_STUDY)
        return self._session.scalar(self._limited(waiting)) or 0

    def attention_count(self, since: datetime) -> int:
        """Number of jobs that `attention_since` selects."""
        attention = select(JobRow.key).where(JobRow.key.in_(_needs_attention(since)), NO_TRIAL)
        keys = self._limited(attention)
        return self._session.scalar(select(func.count()).select_from(keys.subquery())) or 0

    def projects(self) -> Sequence[str]:
        """Every project that has a job."""
        return [project for project in self._distinct(JobRow.project) if is_visible(project, self._visible)]

    def owners(self) -> Sequence[str]:
        if self._visible is None:
            owners = self._distinct(JobRow.owner)
        else:
            each = (self._distinct(JobRow.owner, JobRow.project == project) for project in self._visible)
            owners = sorted(set(chain.from_iterable(each)))
        return [owner for owner in owners if owner]

    def _limited(self, query: Select) -> Select:  # type: ignore[type-arg]
        """The query of jobs without those of other projects."""
        return query if self._visible is None else query.where(JobRow.project.in_(self._visible))

    def entries(self, keys: Sequence[int]) -> Sequence[JobListEntry]:
        """The jobs with these keys that exist, in their order."""
        rows = {row.key: row._mapping for row in self._session.execute(_COLUMNS.where(JobRow.key.in_(keys)))}
        runs, unwell = self._latest_runs(keys), self._unwell(keys)
        return [_entry(rows[key], runs.get(key, {}), unwell.get(key, "")) for key in keys if key in rows]

    def _latest_runs(self, keys: Sequence[int]) -> dict[int, Mapping[Any, Any]]:
        """The latest run of each of these jobs that has one, with its primary replica."""
        latest = (
            select(RunRow.job_key, func.max(RunRow.number).label("number"))
            .where(RunRow.job_key.in_(keys), RunRow.beside.is_(None))
            .group_by(RunRow.job_key)
            .subquery()
        )
        rows = self._session.execute(
            select(
                RunRow.job_key,
                RunRow.number.label("run"),
                RunRow.activity,
                ReplicaRow.first_step,
                ReplicaRow.step,
                ReplicaRow.steps,
                ReplicaRow.step_at,
                ReplicaRow.started_at.label("replica_started_at"),
                ReplicaRow.metrics,
            )
            .join(latest, and_(RunRow.job_key == latest.c.job_key, RunRow.number == latest.c.number))
            .join(ReplicaRow, and_(ReplicaRow.run_id == RunRow.run_id, ReplicaRow.position == 0))
        )
        return {row.job_key: row._mapping for row in rows}

    def _unwell(self, keys: Sequence[int]) -> dict[int, str]:
        """Problems of the jobs with a live run: `stalled` or `silent`."""
        rows = self._session.execute(
            select(RunRow.job_key, ReplicaRow.stall.is_not(None))
            .join(ReplicaRow, ReplicaRow.run_id == RunRow.run_id)
            .where(RunRow.job_key.in_(keys), RunRow.state.in_(LIVE_RUNS), _replica_is_unwell())
        )
        problems: dict[int, str] = {}
        for key, stalled in rows:
            problems[key] = "stalled" if stalled or problems.get(key) == "stalled" else "silent"
        return problems

    def _page(
        self, search: "_Search", order: Order | ValueOrder, *, descending: bool, offset: int, limit: int
    ) -> Sequence[int]:
        query = self._limited(search.where(select(JobRow.key), with_states=True))
        return self._session.scalars(self._ordered(query, order, descending).offset(offset).limit(limit)).all()

    def _counts(self, search: "_Search") -> dict[JobState, int]:
        query = self._limited(search.where(select(JobRow.state, func.count()), with_states=False))
        return {state: count for state, count in self._session.execute(query.group_by(JobRow.state))}  # noqa: C416

    def _ordered(self, query: Select, order: Order | ValueOrder, descending: bool) -> Select:  # type: ignore[type-arg]
        if isinstance(order, ValueOrder):
            return self._ordered_by_value(query, order.field, descending)
        columns = list(dict.fromkeys((_ORDER_COLUMNS[order], JobRow.created_at, JobRow.key)))
        if order in (Order.STARTED, Order.ENDED):
            query = query.where(columns[0].is_not(None))
        return query.order_by(*(column.desc() if descending else column for column in columns))

    def _ordered_by_value(self, query: Select, field: str, descending: bool) -> Select:  # type: ignore[type-arg]
        """A parameter with any number is sorted by its numbers, others by their text."""
        row: type[JobParameterRow | JobMetricRow]
        if field.startswith(value_filters.METRICS):
            row, (name, number) = JobMetricRow, value_filters.split_metric(field)
            column: InstrumentedAttribute[Any] = value_filters.NUMBERS[number]
        else:
            row, name = JobParameterRow, field.removeprefix(value_filters.PARAMETERS)
            numbers = select(JobParameterRow.job_key).where(JobParameterRow.name == name)
            any_number = numbers.where(JobParameterRow.number.is_not(None)).limit(1)
            is_numeric = self._session.scalar(any_number) is not None
            column = JobParameterRow.number if is_numeric else JobParameterRow.value
        query = query.join(row, and_(row.job_key == JobRow.key, row.name == name)).where(column.is_not(None))
        return query.order_by(*(each.desc() if descending else each for each in (column, row.job_key)))

    def _distinct(self, column: InstrumentedAttribute[str], *conditions: ColumnElement[bool]) -> list[str]:
        """Distinct values by a loose index scan, one step for each value."""
        first = select(func.min(column).label("value")).where(NO_TRIAL, *conditions)
        leaps = first.cte("leaps", recursive=True)
        next_one = select(func.min(column)).where(column > leaps.c.value, NO_TRIAL, *conditions)
        leaps = leaps.union_all(select(next_one.scalar_subquery()).where(leaps.c.value.is_not(None)))
        return [value for value in self._session.scalars(select(leaps.c.value)) if value is not None]


def shape_of(scale_tier: str | None, gang: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Tier and machines of a gang, in short and in full: `CUSTOM 1+4`, `1 × n1-standard-8 (master), 4 × n1-highmem-8
    (worker)`. `gang` is the column of a row."""
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


_COLUMNS = select(
    JobRow.key,
    JobRow.project,
    JobRow.job_id,
    JobRow.owner,
    JobRow.state,
    JobRow.priority,
    JobRow.labels,
    JobRow.gang,
    JobRow.training_input["scaleTier"].as_string().label("scale_tier"),
    JobRow.created_at,
    JobRow.queued_at,
    JobRow.started_at,
    JobRow.ended_at,
    JobRow.waiting,
    JobRow.position,
    JobRow.verdict,
    JobRow.error_message,
    JobRow.note,
    JobRow.retries_used,
    JobRow.study_key,
)


def _entry(job: Mapping[Any, Any], run: Mapping[Any, Any], unwell: str) -> JobListEntry:
    restarted = job["retries_used"] and job["ended_at"] is None
    fields = {**job, **run}
    del fields["retries_used"]
    fields.pop("job_key", None)
    return JobListEntry(
        **fields
        | {
            "verdict": Verdict.model_validate(job["verdict"]) if job["verdict"] else None,
            "metrics": MetricsDigest.model_validate(run.get("metrics") or {}),
            "attention": unwell or ("restarted" if restarted else ""),
        }
    )


class _Search:
    """The conditions of a query in SQL, with what many jobs have: there a test for each job is faster than a list of
    the jobs. So it is for all conditions in a search `of_few` jobs."""

    def __init__(self, reader: Reader, conditions: JobQuery, *, of_few: bool = False) -> None:
        self._conditions = conditions
        self._common_labels = frozenset(conditions.labels) if of_few else reader.common_labels(conditions.labels)
        expression = conditions.filter
        self._filter: ColumnElement[bool] | None = None
        if expression is not None:
            common = filters.all_in(expression) if of_few else filters.common_in(reader, expression)
            self._filter = filters.to_sql(expression, common)
        self._trials = conditions.trials or filters.finds_trials(expression)

    def where(self, query: Select, *, with_states: bool) -> Select:  # type: ignore[type-arg]
        """The query of jobs with the conditions, those of the states left out unless `with_states`."""
        conditions = self._conditions
        query = query.where(JobRow.study_key.is_not(None) if self._trials else NO_TRIAL)
        if conditions.project:
            query = query.where(JobRow.project == conditions.project)
        if conditions.owner:
            query = query.where(JobRow.owner == conditions.owner)
        if conditions.text:
            query = query.where(JobRow.name.contains(conditions.text.lower(), autoescape=True))
        if with_states and conditions.states:
            query = query.where(JobRow.state.in_(conditions.states))
        for label in conditions.labels:
            labelled = jobs_labelled(*label)
            if label in self._common_labels:
                query = query.where(labelled.where(JobLabelRow.job_key == JobRow.key).exists())
            else:
                query = query.where(JobRow.key.in_(labelled))
        if conditions.created_after is not None:
            query = query.where(JobRow.created_at >= conditions.created_after)
        if conditions.created_before is not None:
            query = query.where(JobRow.created_at <= conditions.created_before)
        if conditions.attention_since is not None:
            query = query.where(JobRow.key.in_(_needs_attention(conditions.attention_since)))
        return query if self._filter is None else query.where(self._filter)


def _needs_attention(since: datetime) -> CompoundSelect[tuple[int]]:
    """Keys of the jobs that need attention. Each part begins with a selective index."""
    failed = select(JobRow.key).where(JobRow.ended_at >= since, JobRow.state == JobState.FAILED)
    restarted = select(JobRow.key).where(JobRow.state.in_(UNFINISHED_JOBS), JobRow.retries_used > 0)
    unwell = (
        select(JobRow.key)
        .join(RunRow, RunRow.job_key == JobRow.key)
        .join(ReplicaRow, ReplicaRow.run_id == RunRow.run_id)
        .where(JobRow.state.in_(UNFINISHED_JOBS), RunRow.state.in_(LIVE_RUNS), _replica_is_unwell())
    )
    return union(failed, restarted, unwell)


def _replica_is_unwell() -> ColumnElement[bool]:
    return or_(ReplicaRow.stall.is_not(None), ReplicaRow.state == ReplicaState.UNKNOWN)
