"""Database tables, for SQLite and PostgreSQL.

`events` is append-only: rows are inserted and read, never updated; they are deleted with their job.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    and_,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState
from trainyard_server.domain.tuning.study import TrialPhase

_E = TypeVar("_E", bound=StrEnum)


class UtcTime(TypeDecorator[datetime]):
    """A time: with its zone in Python, in UTC in the database. SQLite stores no zone, so it is added again."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.replace(tzinfo=UTC)


class AnyText(TypeDecorator[str]):
    """Text that may come from a program: what PostgreSQL cannot store, NUL and lone surrogates, becomes U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Name(TypeDecorator[_E]):
    """A member of an enum by its name, in a text column: a new member needs no migration."""

    impl = String(32)
    cache_ok = True

    def __init__(self, kind: type[_E]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: _E | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else value.value

    def process_result_value(self, value: str | None, dialect: Dialect) -> _E | None:  # noqa: ARG002
        return None if value is None else self.kind(value)


class Table(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy as it stands
        datetime: UtcTime,
        dict[str, Any]: JSON,
        dict[str, str]: JSON,
        list[Any]: JSON,
        JobState: Name(JobState),
        RunState: Name(RunState),
        ReplicaState: Name(ReplicaState),
        Reason: Name(Reason),
        TrialPhase: Name(TrialPhase),
    }


def values_of(row: object, view: type[BaseModel], *, but: Collection[str] = ()) -> dict[str, Any]:
    """The values of a row for the fields of a view that it has under the same name, without `but` some."""
    names = [name for name in view.model_fields if name not in but]
    return {name: getattr(row, name) for name in names if hasattr(row, name)}


_NO_TRIAL = text("study_key IS NULL")


def _list_index(name: str, *columns: str) -> Index:
    """An index that covers a list, so that only the jobs of one page are read from the table. It has no trials.

    The migrations make it on PostgreSQL with the same condition; naming that here would load its dialect."""
    return Index(name, *columns, "study_key", sqlite_where=_NO_TRIAL)


def _lower_job_id(context: DefaultExecutionContext) -> str:
    job_id: str = context.get_current_parameters()["job_id"]  # type: ignore[no-untyped-call]
    return job_id.lower()


class JobRow(Table):
    """A job: of a user, a study among them, or a trial of a study. Ids are unique in a project for ever: see
    DeletedJobRow."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("project", "job_id"),
        Index(None, "state"),
        Index(None, "changed"),
        _list_index("ix_jobs_by_created", "created_at", "key", "state", "name"),
        _list_index("ix_jobs_by_project", "project", "created_at", "key", "state", "name"),
        _list_index("ix_jobs_by_project_and_owner", "project", "owner"),
        _list_index("ix_jobs_by_project_and_key", "project", "key", "state", "job_id", "created_at"),
        _list_index("ix_jobs_by_project_and_state", "project", "state", "key"),
        _list_index("ix_jobs_by_owner", "owner", "created_at", "key", "state", "name"),
        _list_index("ix_jobs_by_state", "state", "created_at", "key", "name"),
        _list_index("ix_jobs_by_name", "name", "created_at", "key", "state"),
        _list_index("ix_jobs_by_start", "started_at", "created_at", "key", "state"),
        _list_index("ix_jobs_by_state_and_end", "state", "ended_at", "key"),
        Index(None, "measured", "ended_at"),
        _list_index("ix_jobs_by_end", "ended_at", "created_at", "key", "state"),
    )

    key: Mapped[int] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(String(128))
    # The id in lower case, to search in.
    name: Mapped[str] = mapped_column(String(128), default=_lower_job_id)
    owner: Mapped[str] = mapped_column(String(128), default="")  # who submitted it; "" if unknown
    study_key: Mapped[int | None]  # of a trial: the key of its study
    state: Mapped[JobState]
    training_input: Mapped[dict[str, Any]]  # canonical: as it was sent
    gang: Mapped[list[Any]]  # the replicas it requests, of a study each trial; by the catalogue at its creation
    priority: Mapped[int]
    run_limit_s: Mapped[float | None]  # the longest running time of its band when it was submitted; None: any
    labels: Mapped[dict[str, str]]
    revision: Mapped[int] = mapped_column(default=0)  # of the patchable fields; part of the etag
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]  # since when it waits for a run to start
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    error_message: Mapped[str] = mapped_column(AnyText, default="")
    stop_message: Mapped[str] = mapped_column(AnyText, default="")  # why it was cancelled
    retries_used: Mapped[int] = mapped_column(default=0)
    backoff_until: Mapped[datetime | None] = mapped_column("not_before")  # the earliest time of its next run
    waiting: Mapped[str] = mapped_column(AnyText, default="")  # what a queued job waits for
    waiting_kind: Mapped[str] = mapped_column(String(32), default="")
    position: Mapped[int] = mapped_column(default=0)
    verdict: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    note: Mapped[str] = mapped_column(AnyText, default="")  # of people, about the job
    measured: Mapped[bool] = mapped_column(
        default=False
    )  # its rows of metrics are of its whole log and its event files
    # Revision at which it, its run or its labels changed.
    changed: Mapped[int] = mapped_column(BigInteger, default=0)


class StudyRow(Table):
    """A study: a job whose trials are jobs. It has no runs of its own."""

    __tablename__ = "studies"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    seed: Mapped[int]
    failure: Mapped[str] = mapped_column(AnyText, default="")  # why it fails once its trials have ended
    exhausted: Mapped[bool] = mapped_column(default=False)  # its space has no further trial
    past: Mapped[list[Any]]  # [parameters, value] of the trials of the study that it resumes
    metric: Mapped[str] = mapped_column(AnyText, default="")  # taken from what trials report; "": the config's


class TrialRow(Table):
    """A trial of a study. Its state and times are those of its job, `STUDY.NUMBER`."""

    __tablename__ = "trials"

    study_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), unique=True)
    parameters: Mapped[dict[str, str]]
    logged: Mapped[TrialPhase]  # the last one in the study's log
    stopped_early: Mapped[bool] = mapped_column(default=False)
    from_file: Mapped[bool] = mapped_column(default=False)  # its program reports to the metric file
    others: Mapped[dict[str, Any] | None]  # summary of other metrics in that file, where the study's is not in it
    step: Mapped[int | None] = mapped_column(BigInteger)  # of its last measurement
    value: Mapped[float | None]
    measurements: Mapped[list[Any]] = mapped_column(deferred=True, deferred_raiseload=True)  # [step, value]


class JobOriginRow(Table):
    """The origin of a job (`trainyard_protocol.views.origin`), recorded once. `content` has all but the diff."""

    __tablename__ = "job_origins"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    summary: Mapped[dict[str, Any]]
    content: Mapped[dict[str, Any]]
    diff: Mapped[str] = mapped_column(AnyText)


class JobParameterRow(Table):
    """A parameter of a job, to find jobs by: read from its arguments (`parameters_of`), or logged by its program.

    `number`: the number that `value` is, if any."""

    __tablename__ = "job_parameters"
    __table_args__ = (
        Index("ix_job_parameters_by_number", "name", "number", "job_key"),
        Index("ix_job_parameters_by_value", "name", "value", "job_key"),
    )

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[str] = mapped_column(AnyText)
    number: Mapped[float | None]


class JobMetricRow(Table):
    """A metric of a job, to find and to sort jobs by. Values that are not finite are null.

    `best` is the lowest or the highest value, by the words in the name; null where they do not tell."""

    __tablename__ = "job_metrics"
    __table_args__ = (
        Index("ix_job_metrics_by_last", "name", "last", "job_key"),
        Index("ix_job_metrics_by_best", "name", "best", "job_key"),
    )

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger)  # of the last value
    last: Mapped[float | None]
    best: Mapped[float | None]
    lowest: Mapped[float | None]
    highest: Mapped[float | None]
    source: Mapped[int] = mapped_column(default=1)
    """A `MetricSource`."""
    time_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    run: Mapped[int] = mapped_column(default=0)
    """The number of the job's run that has the last value."""
    logged: Mapped[int] = mapped_column(default=0)
    """Number of its points in `logged_metrics`."""


class LoggedMetricsRow(Table):
    """Points of metrics that a program has logged in one call: [name, step, value, time in ms]. `run` is the number of
    the job's run."""

    __tablename__ = "logged_metrics"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[int]
    points: Mapped[list[Any]]


class TrackedRunRow(Table):
    """A further run that a program has made through MLflow, beside the one that its job is."""

    __tablename__ = "tracked_runs"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    status: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]  # by its program, which may restore it


class TrackedValueRow(Table):
    """A value of a run of MLflow: a tag, a parameter in full, an input. `number` is that of the further run, 0 for the
    job's own; `run` that of the job's run that has written it. The kinds are in `tables.tracking`."""

    __tablename__ = "tracked_values"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    value: Mapped[str] = mapped_column(AnyText)
    run: Mapped[int] = mapped_column(default=0)


class LoggedModelRow(Table):
    """A model that a program has logged through MLflow, `m-JOB-NUMBER`. `source` is the number of the run that it is
    of: 0 for the job's own. `tags` and `params` are texts by name, `metrics` its values, as MLflow's JSON."""

    __tablename__ = "logged_models"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    source: Mapped[int]
    name: Mapped[str] = mapped_column(AnyText)
    model_type: Mapped[str] = mapped_column(AnyText, default="")
    status: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    tags: Mapped[dict[str, str]]
    params: Mapped[dict[str, str]]
    metrics: Mapped[list[Any]]


class SavedViewRow(Table):
    """A view of the table of jobs that a project has saved: the query of its address."""

    __tablename__ = "saved_views"

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    query: Mapped[str] = mapped_column(Text)
    saved_by: Mapped[str] = mapped_column(String(128))
    saved_at: Mapped[datetime]


class ChannelRow(Table):
    """A notification channel of a project. `events`: those of all its jobs that it gets."""

    __tablename__ = "notification_channels"

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    transport: Mapped[str] = mapped_column(String(16))
    address: Mapped[str] = mapped_column(Text)
    events: Mapped[list[Any]]
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]


class NoticeRow(Table):
    """An event of a job of which nobody is notified yet: its row in `events` and, for a bound of a metric, the value
    beyond it. Deleted in the transaction that writes its notifications."""

    __tablename__ = "notices"

    key: Mapped[int] = mapped_column(primary_key=True)
    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"))
    number: Mapped[int]


class MetricAlertRow(Table):
    """A bound of a metric of which a job notifies, until the metric is beyond it or the job has ended. `position`: of
    the destination among those of the job."""

    __tablename__ = "metric_alerts"
    __table_args__ = (Index("ix_metric_alerts_by_metric", "metric", "job_key"),)

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(String(100), primary_key=True)
    operator: Mapped[str] = mapped_column(String(2), primary_key=True)
    bound: Mapped[float] = mapped_column(primary_key=True)


class NotificationRow(Table):
    """A notification, kept for some days after its delivery. The job may be deleted meanwhile."""

    __tablename__ = "notifications"
    __table_args__ = (
        Index("ix_notifications_by_state", "state", "next_at"),
        Index("ix_notifications_of_project", "project", "key"),
    )

    key: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(String(32))
    project: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(String(128))
    event: Mapped[str] = mapped_column(String(200))
    channel: Mapped[str] = mapped_column(String(40))  # "": the job's own destination
    transport: Mapped[str] = mapped_column(String(16))
    address: Mapped[str] = mapped_column(Text)
    receiver: Mapped[str] = mapped_column(Text, default="")  # of a URL HOST:PORT, of a mail address its domain
    content: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None]
    error: Mapped[str] = mapped_column(AnyText, default="")


class UsageRow(Table):
    """Usage of a run, or of its part on one agent: written after its end, kept when its job is deleted. Seconds are
    those of one CPU, or of one GPU; `idle_gpu_s` None: nobody measured its GPUs. `wait_s`: how long a job waited for
    its first run."""

    __tablename__ = "usage_records"
    __table_args__ = (Index("ix_usage_records_by_day", "day", "project"), Index("ix_usage_records_by_end", "ended_at"))

    run_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project: Mapped[str] = mapped_column(String(128))
    owner: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(String(128))
    labels: Mapped[dict[str, str]]
    day: Mapped[str] = mapped_column(String(10))  # of its end, in UTC: 2026-11-28
    ended_at: Mapped[datetime]
    cpu_s: Mapped[float]
    gpu_s: Mapped[float]
    idle_gpu_s: Mapped[float | None]
    wait_s: Mapped[float | None]  # None: not the first run of its job
    has_failed: Mapped[bool]


class DeletedJobRow(Table):
    """The id and the key of a deleted job, so that neither is ever used again."""

    __tablename__ = "deleted_jobs"
    __table_args__ = (UniqueConstraint("project", "job_id"),)

    key: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    project: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(String(128))
    deleted_at: Mapped[datetime]
    deleted_by: Mapped[str] = mapped_column(String(128))


class JobLabelRow(Table):
    """One label of a job, as `JobRow.labels` has it, to find jobs by."""

    __tablename__ = "job_labels"
    __table_args__ = (Index("ix_job_labels_by_value", "name", "value", "job_key"),)

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(String(63))


class RunRow(Table):
    """A run, or the part of one on a further agent: of a gang over several agents each has its replicas in a row of its
    own. The first one, with the primary, is the run; the others move with it."""

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("job_key", "number", "agent_id"),
        Index(None, "agent_id", "state"),
        Index(None, "state"),
        Index(None, "part_of"),
        Index(None, "ended_at"),
    )

    run_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"))
    number: Mapped[int]
    beside: Mapped[int | None]  # of a restarted evaluator alone: the number of its gang's run
    part_of: Mapped[str | None] = mapped_column(String(32))  # of a part on a further agent: the id of the run
    agents: Mapped[int] = mapped_column(default=1)  # the number of them that have a part of it
    ready: Mapped[bool] = mapped_column(default=False)  # its agent has placed it, and reaches the other parts
    agent_id: Mapped[str] = mapped_column(ForeignKey("agents.agent_id"))
    state: Mapped[RunState]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    acknowledged: Mapped[bool] = mapped_column(default=False)  # its agent has reported it
    activity: Mapped[str] = mapped_column(AnyText, default="")
    runtime: Mapped[str] = mapped_column(String(32), default="")  # chosen by its agent; "" before
    runtime_reason: Mapped[str] = mapped_column(AnyText, default="")
    has_resolved: Mapped[bool] = mapped_column(default=False)
    # A `ResolvedRun` as JSON, some kilobytes: read by `origins.resolved`, not with the row.
    resolved: Mapped[str] = mapped_column(AnyText, default="", deferred=True, deferred_raiseload=True)
    verdict: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class ReplicaRow(Table):
    __tablename__ = "replicas"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    task: Mapped[str] = mapped_column(String(64), primary_key=True)
    position: Mapped[int]  # in the gang: the master first
    state: Mapped[ReplicaState]
    machine_type: Mapped[str] = mapped_column(String(64))
    cpus: Mapped[list[Any]]
    gpus: Mapped[list[Any]]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    vcpus: Mapped[int] = mapped_column(default=0)
    accelerator_type: Mapped[str] = mapped_column(String(64), default="")
    accelerator_count: Mapped[int] = mapped_column(default=0)
    address: Mapped[str] = mapped_column(String(255), default="")
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    exit_code: Mapped[int | None]
    reason: Mapped[Reason | None]
    message: Mapped[str] = mapped_column(AnyText, default="")
    after_stop: Mapped[bool] = mapped_column(default=False)
    # Order of its end in the run; 0: the time is exact.
    exit_order: Mapped[int] = mapped_column(BigInteger, default=0)
    exit_error_s: Mapped[float] = mapped_column(default=0.0)  # bound of the error of finished_at, by its agent's clock
    log_complete: Mapped[bool] = mapped_column(default=False)
    log_lines: Mapped[int | None]  # how many its agent counted, once the log is complete
    log_sha256: Mapped[str] = mapped_column(String(64), default="")  # the agent's digest of them
    log_kept: Mapped[int | None]  # number of stored lines if the log quota cut it off
    first_step: Mapped[int | None] = mapped_column(BigInteger)  # the first that its program reported
    step: Mapped[int | None] = mapped_column(BigInteger)  # the last that its program reported
    steps: Mapped[int | None] = mapped_column(BigInteger)  # in all
    step_at: Mapped[datetime | None]
    durable_step: Mapped[int | None] = mapped_column(BigInteger)  # of its newest checkpoint
    durable_at: Mapped[datetime | None]
    stall: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    waits: Mapped[str] = mapped_column(AnyText, default="")  # why its engine has not started it yet
    stacks: Mapped[str] = mapped_column(AnyText, default="")  # stack dump of its program when the run stalled
    # A summary of its curves, some kilobytes: read by `Reader.digests`, not with the row.
    metrics: Mapped[dict[str, Any] | None] = mapped_column(
        JSON(none_as_null=True), deferred=True, deferred_raiseload=True
    )

    @property
    def is_log_open(self) -> bool:
        """Whether its agent has not ended its log: a complete one was given up with its agent, which may come back."""
        return self.log_lines is None and self.log_kept is None


IS_LOG_OPEN = and_(ReplicaRow.log_lines.is_(None), ReplicaRow.log_kept.is_(None))


class EventRow(Table):
    """One line of a job's history; `number` counts from 1 within the job. `actor` caused it: a person, `agent NAME`, or
    the service; "" before that was recorded."""

    __tablename__ = "events"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    time: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(32))
    message: Mapped[str] = mapped_column(AnyText)
    run: Mapped[int | None]
    task: Mapped[str] = mapped_column(String(64), default="")
    before: Mapped[str] = mapped_column(String(32), default="")
    after: Mapped[str] = mapped_column(String(32), default="")
    actor: Mapped[str] = mapped_column(String(128), default="", server_default="")


class AgentRow(Table):
    __tablename__ = "agents"

    agent_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    info: Mapped[dict[str, Any]]
    key_sha256: Mapped[str] = mapped_column(String(64), default="")  # of its key
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]
    lease_s: Mapped[float | None]  # how long it may be silent; None: no limit
    # An agent is silent while this does not change.
    heartbeats: Mapped[int] = mapped_column("heard", default=0)
    sent_version: Mapped[str] = mapped_column(String(32), default="")  # of the last answer to it
    sent_lease_s: Mapped[float | None]  # the lease in that answer
    # The members in that answer, by a majority of which it may keep its lease, and all the lists that it may have.
    sent_members: Mapped[list[Any]] = mapped_column(default=list)
    member_lists: Mapped[list[Any]] = mapped_column(default=list)
    # Ended runs with live processes.
    orphaned_runs: Mapped[list[Any]] = mapped_column("leftovers", default=list)
    draining: Mapped[bool] = mapped_column(default=False)  # it is given no new run
    drain_reason: Mapped[str] = mapped_column(AnyText, default="")  # "": an operator decided it
    failures: Mapped[list[Any]] = mapped_column(default=list)  # of its machine: see domain/scheduling/blame.py
    removed_at: Mapped[datetime | None]  # by an operator; its row stays, for its runs
    given_name: Mapped[str] = mapped_column(AnyText, default="")  # by its token or by itself; another one may have it
    restored: Mapped[bool] = mapped_column(default=False)  # it has not called since a backup was restored
    # Revision at which more than its heartbeat changed.
    changed: Mapped[int] = mapped_column(BigInteger, default=0)

    @property
    def has_members(self) -> bool:
        """Whether it may have a lease that it keeps by a majority."""
        return bool(self.sent_members or self.member_lists)

    def note_answer(self, version: str, lease_s: float | None, members: Sequence[str]) -> None:
        """Record an answer that is sent to it, and may be lost."""
        self.sent_version, self.sent_lease_s, self.sent_members = version, lease_s, list(members)
        if members and list(members) not in self.member_lists:
            self.member_lists = [*self.member_lists, list(members)]

    def confirm_answer(self) -> None:
        """Record that it has the last answer, and so no other lease."""
        self.lease_s = self.sent_lease_s
        self.member_lists = [self.sent_members] if self.sent_members else []


class RevisionRow(Table):
    """Counts the transactions that change what the scheduler looks at; one row. What has changed since a revision is
    read by `changed` of jobs and agents. `placed` and `noted`: the last revision at which a run was created, and the
    last one at which reasons to wait were written."""

    __tablename__ = "revisions"

    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)
    placed: Mapped[int] = mapped_column(BigInteger)
    noted: Mapped[int] = mapped_column(BigInteger)


class LeaseRow(Table):
    """A lease of one server process. It expires when `heartbeat` has not changed for `ttl_s`, by the reader's
    clock."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    heartbeat: Mapped[int] = mapped_column("beat")
    ttl_s: Mapped[float]


class InstallationRow(Table):
    """The id of the data directory with the logs and uploads of this database."""

    __tablename__ = "installation"

    installation_id: Mapped[str] = mapped_column(String(32), primary_key=True)


class UsedTokenRow(Table):
    """A used sign-in code or an ended session, by its digest. Stored until `until`, when it would have expired."""

    __tablename__ = "spent"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    until: Mapped[datetime]


class TokenRow(Table):
    """A token that was made while the server runs, by its digest. Rows of revoked and expired ones stay. `made_with`:
    the id of the token that it was made with, or `single-sign-on`."""

    __tablename__ = "tokens"
    __table_args__ = (Index(None, "owner", "created_at"), Index(None, "made_with"))

    token_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    owner: Mapped[str] = mapped_column(String(128))  # a person, or an agent
    for_agent: Mapped[bool] = mapped_column(default=False)
    description: Mapped[str] = mapped_column(String(256), default="")
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(128))
    made_with: Mapped[str] = mapped_column(String(32), default="")
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]  # within a minute
    revoked_at: Mapped[datetime | None]
    revoked_by: Mapped[str] = mapped_column(String(128), default="")


class MemberRow(Table):
    """A person's role in a project, or in all: `*`."""

    __tablename__ = "members"
    __table_args__ = (Index(None, "name"),)

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    role: Mapped[str] = mapped_column(String(32))
    since: Mapped[datetime]
    given_by: Mapped[str] = mapped_column(String(128))


class AuditRow(Table):
    """A row of the audit: `trainyard_protocol.views.audit.AuditEntry`. Never changed but by the call itself."""

    __tablename__ = "audit"
    # Each list is the newest first, of all or of one project, actor or action.
    __table_args__ = (
        Index(None, "time"),
        Index(None, "project", "id"),
        Index(None, "actor", "id"),
        Index(None, "action", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    time: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(128))
    credential: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(32))
    action: Mapped[str] = mapped_column(String(128))
    project: Mapped[str] = mapped_column(String(128))
    subject: Mapped[str] = mapped_column(String(256))
    outcome: Mapped[str] = mapped_column(String(16))
    status: Mapped[int]
    address: Mapped[str] = mapped_column(String(64))
    user_agent: Mapped[str] = mapped_column(String(200))
    request_id: Mapped[str] = mapped_column(String(64))
    count: Mapped[int]


class AttachmentRow(Table):
    """An attachment to a replica, while its server says every half minute that it goes on. `server_url` is where the
    other servers on the database reach that one; "": there is no other. `joined`: its caller has come."""

    __tablename__ = "attachments"
    __table_args__ = (Index(None, "agent_id"),)

    attachment_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    agent_id: Mapped[str] = mapped_column(String(128))
    run_id: Mapped[str] = mapped_column(String(32))
    task: Mapped[str] = mapped_column(String(64))
    request: Mapped[dict[str, Any]]
    caller: Mapped[str] = mapped_column(String(128))
    server_url: Mapped[str] = mapped_column(String(255))
    alive_until: Mapped[datetime]
    joined: Mapped[bool] = mapped_column(default=False)


class BucketRow(Table):
    """A bucket that was made here, and its project."""

    __tablename__ = "buckets"
    __table_args__ = (Index("ix_buckets_project", "project", "name"),)

    name: Mapped[str] = mapped_column(String(222), primary_key=True)
    project: Mapped[str] = mapped_column(String(128))
    made_by: Mapped[str] = mapped_column(String(128))
    made_at: Mapped[datetime]


class SecretRow(Table):
    """A secret of a project, its value encrypted."""

    __tablename__ = "secrets"

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    ciphertext: Mapped[str] = mapped_column(Text)
    set_by: Mapped[str] = mapped_column(String(128))
    set_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]  # when a run was last given it
    last_used_by: Mapped[str] = mapped_column(String(128), default="")  # the job of that run
