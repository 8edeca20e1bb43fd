"""Database tables, for SQLite and PostgreSQL.

`events` is append-only: rows are inserted and read, never updated; they are deleted with their job.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import JSON, BigInteger, DateTime, ForeignKey, Index, MetaData, String, Text, UniqueConstraint
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState

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
    }


def _lower_job_id(context: DefaultExecutionContext) -> str:
    job_id: str = context.get_current_parameters()["job_id"]  # type: ignore[no-untyped-call]
    return job_id.lower()


class JobRow(Table):
    """A job. Ids are unique in a project for ever: see DeletedJobRow."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("project", "job_id"),
        Index(None, "state"),
        # Each covers a list, so that only the jobs of one page are read from the table.
        Index("ix_jobs_by_created", "created_at", "key", "state", "name"),
        Index("ix_jobs_by_project", "project", "created_at", "key", "state", "name"),
        Index("ix_jobs_by_owner", "owner", "created_at", "key", "state", "name"),
        Index("ix_jobs_by_state", "state", "created_at", "key", "name"),
        Index("ix_jobs_by_name", "name", "created_at", "key", "state"),
        Index("ix_jobs_by_start", "started_at", "created_at", "key", "state"),
        Index("ix_jobs_by_state_and_end", "state", "ended_at", "key"),
        Index("ix_jobs_by_end", "ended_at", "created_at", "key", "state"),
    )

    key: Mapped[int] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(String(128))
    name: Mapped[str] = mapped_column(
        String(128), default=_lower_job_id
    )  # the id in lower case, to search in
    owner: Mapped[str] = mapped_column(String(128), default="")  # who submitted it; "" if unknown
    state: Mapped[JobState]
    training_input: Mapped[dict[str, Any]]  # canonical: as it was sent
    gang: Mapped[list[Any]]  # the replicas it requests, by the catalogue at its creation
    priority: Mapped[int]
    labels: Mapped[dict[str, str]]
    revision: Mapped[int] = mapped_column(default=0)  # of the patchable fields; part of the etag
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]  # when it last became QUEUED
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
    log_removed_at: Mapped[datetime | None]  # by the retention; its record stays


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
    __tablename__ = "runs"
    __table_args__ = (UniqueConstraint("job_key", "number"), Index(None, "agent_id", "state"))

    run_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"))
    number: Mapped[int]
    agent_id: Mapped[str] = mapped_column(ForeignKey("agents.agent_id"))
    state: Mapped[RunState]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    acknowledged: Mapped[bool] = mapped_column(default=False)  # its agent has reported it
    activity: Mapped[str] = mapped_column(AnyText, default="")
    runtime: Mapped[str] = mapped_column(String(32), default="")  # chosen by its agent; "" before
    runtime_reason: Mapped[str] = mapped_column(AnyText, default="")
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
    address: Mapped[str] = mapped_column(String(255), default="")
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    exit_code: Mapped[int | None]
    reason: Mapped[Reason | None]
    message: Mapped[str] = mapped_column(AnyText, default="")
    after_stop: Mapped[bool] = mapped_column(default=False)
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
    stacks: Mapped[str] = mapped_column(AnyText, default="")  # stack dump of its program when the run stalled
    # A summary of its curves, some kilobytes: read by `Reader.digests`, not with the row.
    metrics: Mapped[dict[str, Any] | None] = mapped_column(
        JSON(none_as_null=True), deferred=True, deferred_raiseload=True
    )


class EventRow(Table):
    """One line of a job's history; `number` counts from 1 within the job."""

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


class AgentRow(Table):
    __tablename__ = "agents"

    agent_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    info: Mapped[dict[str, Any]]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]
    lease_s: Mapped[float | None]  # how long it may be silent; None: no limit
    heartbeats: Mapped[int] = mapped_column(
        "heard", default=0
    )  # an agent is silent while this does not change
    sent_version: Mapped[str] = mapped_column(String(32), default="")  # of the last answer to it
    sent_lease_s: Mapped[float | None]  # the lease in that answer
    orphaned_runs: Mapped[list[Any]] = mapped_column(
        "leftovers", default=list
    )  # ended runs with live processes


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
