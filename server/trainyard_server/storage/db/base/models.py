"""Database tables, for SQLite and PostgreSQL.

`events` is append-only: rows are inserted and read, never updated; they are deleted with their job.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text, UniqueConstraint, and_, text
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState
from trainyard_server.domain.tuning.study import TrialPhase
from trainyard_server.storage.db.base.columns import AnyText, Table

HELD = "held"
"""The `waiting_kind` of a queued job that the scheduler passes: see `Writer.hold`."""

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

    @property
    def is_study(self) -> bool:
        """Whether it is a study, of which there is a `StudyRow`."""
        return self.study_key is None and self.training_input.get("hyperparameters") is not None

    @property
    def is_held(self) -> bool:
        """Whether it is queued, and may not start yet."""
        return self.state is JobState.QUEUED and self.waiting_kind == HELD


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
    """The origin of a job (`trainyard_protocol.answers.origin`), recorded once. `content` has all but the diff."""

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


class SavedViewRow(Table):
    """A view of the table of jobs that a project has saved: the query of its address."""

    __tablename__ = "saved_views"

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    query: Mapped[str] = mapped_column(Text)
    saved_by: Mapped[str] = mapped_column(String(128))
    saved_at: Mapped[datetime]


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
    durable_every_s: Mapped[float | None]  # the time between its two newest checkpoints
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


class BucketRow(Table):
    """A bucket that was made here, and its project."""

    __tablename__ = "buckets"
    __table_args__ = (Index("ix_buckets_project", "project", "name"),)

    name: Mapped[str] = mapped_column(String(222), primary_key=True)
    project: Mapped[str] = mapped_column(String(128))
    made_by: Mapped[str] = mapped_column(String(128))
    made_at: Mapped[datetime]
