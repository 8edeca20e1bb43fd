"""Queries of MLflow's runs: jobs, and the further runs that their programs have made."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    String,
    and_,
    case,
    cast,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    union_all,
)

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.parameters import MAX_PARAMETER_NAME
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.capabilities.tracking.search.mlflow_filter import (
    FieldKind,
    Operand,
    SearchField,
    SearchOrder,
    SearchTerm,
)
from trainyard_server.capabilities.tracking.tables import TrackedRunRow, TrackedValueRow
from trainyard_server.storage.db.base.columns import UtcTime
from trainyard_server.storage.db.base.models import JobLabelRow, JobMetricRow, JobParameterRow, JobRow
from trainyard_server.storage.db.queries.reader import Reader

PAGE_CHARACTERS = 4 * 2**20
"""Characters of the values of the runs on one page."""

STATUSES = {
    JobState.QUEUED: "SCHEDULED",
    JobState.PREPARING: "SCHEDULED",
    JobState.SUCCEEDED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "KILLED",
}
"""MLflow's status of a job; of one that is not here it is RUNNING."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 253_370_764_800_000  # the year 9999
_MS = timedelta(milliseconds=1)


class ViewType(StrEnum):
    """The runs that a search looks at."""

    ACTIVE_ONLY = "ACTIVE_ONLY"
    DELETED_ONLY = "DELETED_ONLY"
    ALL = "ALL"


class FoundRun(NamedTuple):
    """A run: the key of its job, and its number there, 0 for the job's own."""

    key: int
    number: int


class RunList:
    """Runs of some projects in one consistent view of the database."""

    def __init__(self, reader: Reader, projects: Sequence[str], view: ViewType) -> None:
        self._session = reader.session
        self._is_sqlite = reader.session.get_bind().dialect.name == "sqlite"
        self._runs = _runs(projects, view).subquery("runs")
        self._columns = self._runs.c

    def find(
        self, terms: Sequence[SearchTerm], orders: Sequence[SearchOrder], offset: int, limit: int
    ) -> Sequence[FoundRun]:
        """The runs that meet all terms. Runs that lack what they are sorted by come last; equal ones the newest
        first. Raises InvalidArgument for what cannot be searched by."""
        runs = self._columns
        query = select(runs.key, runs.number).where(*(self._meets(term) for term in terms))
        for order in orders:
            query = query.order_by(*self._ordered(order))
        query = query.order_by(runs.start_time.desc(), runs.key.desc(), runs.number.desc())
        return [FoundRun(*row) for row in self._session.execute(query.offset(offset).limit(limit))]

    def fitting(self, found: Sequence[FoundRun]) -> int:
        """The number of the first of these runs that fit into one answer: at least one."""
        keys = list({run.key for run in found})
        sizes = select(TrackedValueRow.job_key, TrackedValueRow.number, func.sum(func.length(TrackedValueRow.value)))
        sizes = sizes.where(TrackedValueRow.job_key.in_(keys)).group_by(TrackedValueRow.job_key, TrackedValueRow.number)
        of_runs = {(key, number): size for key, number, size in self._session.execute(sizes)}
        total = 0
        for index, run in enumerate(found):
            total += of_runs.get((run.key, run.number), 0)
            if total > PAGE_CHARACTERS and index:
                return index
        return len(found)

    def _meets(self, term: SearchTerm) -> ColumnElement[bool]:
        field = term.field
        if field.kind is FieldKind.DATASET:
            of_run = self._values(f"dataset.{field.key}")
            return of_run.where(self._compared(TrackedValueRow.value, term.op, term.value)).exists()
        if field.kind is FieldKind.ATTRIBUTE and field.key in ("start_time", "end_time"):
            return _at_time(self._columns[field.key], term.op, term.value)
        return self._compared(self._column(field), term.op, term.value)

    def _ordered(self, order: SearchOrder) -> list[ColumnElement[Any]]:
        column = self._column(order.field)
        missing: ColumnElement[Any] = case((column.is_(None), 1), else_=0)
        if order.field.kind is FieldKind.METRIC:  # one that is not finite is before one that there is none of
            has_none = self._metric(order.field.key, JobMetricRow.step).is_(None)
            missing = case((has_none, 2), (column.is_(None), 1), else_=0)
        return [missing, column.desc() if order.descending else column.asc()]

    def _column(self, field: SearchField) -> ColumnElement[Any]:
        """The value of a field of the run; null where it has none."""
        runs = self._columns
        match field.kind:
            case FieldKind.METRIC:
                return self._metric(field.key, JobMetricRow.last)
            case FieldKind.PARAM:
                return func.coalesce(self._value("param", field.key), self._parameter(field.key))
            case FieldKind.TAG:
                return func.coalesce(self._value("tag", field.key), self._default_tag(field.key))
        if field.key == "run_id":
            return _run_id(runs.key, runs.number)
        if field.key == "run_name":
            return func.coalesce(self._value("tag", "mlflow.runName"), runs.run_name)
        if field.key == "artifact_uri":
            raise InvalidArgument(Violation("filter", "cannot look for artifact_uri, which is made from the run's id."))
        column: ColumnElement[Any] = runs[field.key]
        return column

    def _metric(self, key: str, column: Any) -> ColumnElement[Any]:
        runs = self._columns
        query = select(column).where(JobMetricRow.job_key == runs.key, JobMetricRow.name == runs.prefix + key)
        return self._of_run_alone(query, key).correlate(self._runs).scalar_subquery()

    def _parameter(self, key: str) -> ColumnElement[Any]:
        runs = self._columns
        name = func.substr(runs.prefix + key, 1, MAX_PARAMETER_NAME)
        query = select(JobParameterRow.value).where(JobParameterRow.job_key == runs.key, JobParameterRow.name == name)
        return self._of_run_alone(query, key).correlate(self._runs).scalar_subquery()

    def _of_run_alone(self, query: Select[Any], key: str) -> Select[Any]:
        """The query without what the job has of its further runs: their names are before it."""
        if "/" not in key:
            return query
        runs, other = self._columns, TrackedRunRow
        begins = func.substr(literal(key), 1, func.length(other.name) + 1) == other.name + "/"
        of_other = select(other.number).where(other.job_key == runs.key, other.number != 0, begins)
        return query.where(or_(runs.number != 0, not_(of_other.correlate(self._runs).exists())))

    def _default_tag(self, key: str) -> ColumnElement[Any]:
        """The tags that a run has unless its program has set them."""
        runs = self._columns
        match key:
            case "mlflow.runName":
                name: ColumnElement[Any] = runs.run_name
                return name
            case "mlflow.user":
                owner: ColumnElement[Any] = runs.user_id
                return owner
            case "mlflow.parentRunId":
                return case((runs.study_key.is_not(None), _run_id(runs.study_key, literal(0))), else_=null())
        label = select(JobLabelRow.value).where(JobLabelRow.job_key == runs.key, JobLabelRow.name == key)
        return label.correlate(self._runs).scalar_subquery()

    def _value(self, kind: str, key: str) -> ColumnElement[Any]:
        query = self._values(kind).with_only_columns(TrackedValueRow.value)
        return query.where(TrackedValueRow.name == key).scalar_subquery()

    def _values(self, kind: str) -> Select[Any]:
        runs, row = self._columns, TrackedValueRow
        query = select(row.name).where(row.job_key == runs.key, row.number == runs.number, row.kind == kind)
        return query.correlate(self._runs)

    def _compared(self, column: Any, op: str, value: Operand) -> ColumnElement[bool]:
        matched: ColumnElement[bool]
        match op:
            case "IS NULL":
                matched = column.is_(None)
            case "IS NOT NULL":
                matched = column.is_not(None)
            case "IN":
                matched = column.in_(value)
            case "NOT IN":
                matched = column.not_in(value)
            case "LIKE" if self._is_sqlite:  # whose LIKE compares letters in any case
                matched = column.op("GLOB", is_comparison=True)(_glob(str(value)))
            case "LIKE":
                matched = column.like(_literal_backslash(str(value)), escape="\\")
            case "ILIKE":
                matched = column.ilike(_literal_backslash(str(value)), escape="\\")
            case _:
                matched = column.op(op, is_comparison=True)(value)
        return matched


def _runs(projects: Sequence[str], view: ViewType) -> Any:
    """The runs, each with the columns that they are searched by."""
    job, further = JobRow, TrackedRunRow
    status = case(*((job.state == state, name) for state, name in STATUSES.items()), else_="RUNNING")
    ended = case((job.state.in_(FINAL_JOB_STATES), job.ended_at), else_=null())
    ends_with_job = and_(further.status == "RUNNING", job.state.in_(FINAL_JOB_STATES))
    own = select(
        job.key.label("key"),
        literal(0, Integer).label("number"),
        job.job_id.label("run_name"),
        job.owner.label("user_id"),
        status.label("status"),
        func.coalesce(job.started_at, job.created_at, type_=UtcTime()).label("start_time"),
        ended.label("end_time"),
        literal("", String).label("prefix"),
        job.study_key.label("study_key"),
    ).where(job.project.in_(projects))
    others = (
        select(
            further.job_key,
            further.number,
            further.name,
            job.owner,
            case((ends_with_job, status), else_=further.status),
            further.started_at,
            case((ends_with_job, job.ended_at), else_=further.ended_at),
            further.name + "/",
            cast(null(), Integer),
        )
        .join(job, job.key == further.job_key)
        .where(further.number != 0, job.project.in_(projects))
    )
    if view is ViewType.DELETED_ONLY:
        return union_all(own.where(literal(1) == literal(0)), others.where(further.deleted_at.is_not(None)))
    if view is ViewType.ACTIVE_ONLY:
        others = others.where(further.deleted_at.is_(None))
    return union_all(own, others)


def _run_id(key: Any, number: Any) -> ColumnElement[str]:
    """The id of a run, as `services.tracking.targets.run_id` has it."""
    own = literal("job-", String) + cast(key, String)
    return case((number == 0, own), else_=own + "-" + cast(number, String))


def _at_time(column: Any, op: str, value: Operand) -> ColumnElement[bool]:
    """The comparison of a time with milliseconds since 1970, to which its own are rounded down."""
    assert isinstance(value, float | int)
    whole = int(min(max(value, -1), _LATEST_MS))
    from_, to = _EPOCH + whole * _MS, _EPOCH + (whole + 1) * _MS
    is_whole = whole == value
    same: ColumnElement[bool] = and_(column >= from_, column < to) if is_whole else literal(1) == literal(0)
    comparisons: dict[str, ColumnElement[bool]] = {
        "=": same,
        "!=": and_(column.is_not(None), not_(same)),
        "<": column < (from_ if is_whole else to),
        "<=": column < to,
        ">": column >= to,
        ">=": column >= (from_ if is_whole else to),
    }
    return comparisons[op]


def _glob(pattern: str) -> str:
    """The pattern of LIKE for SQLite's GLOB."""
    stands_for = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return "".join(stands_for.get(letter, letter) for letter in pattern)


def _literal_backslash(pattern: str) -> str:
    return pattern.replace("\\", "\\\\")
