"""Submission of jobs: the checks of new jobs, and the transaction that those of several requests share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    TrainyardError,
    Violation,
)
from trainyard_protocol.job.training_input import Job
from trainyard_protocol.states import JobState
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import idle_agents, snapshot_of
from trainyard_server.domain.scheduling.scheduler import beyond_quota, unshared
from trainyard_server.services.jobs.group_commit import GroupCommit
from trainyard_server.services.jobs.training_output import Past, check_study
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.job_inputs import JobInput, gang_to_json
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Event, NewJob, Writer
from trainyard_server.storage.db.tables import buckets, studies
from trainyard_server.storage.db.tables.audit_trail import AuditTrail, current_trail
from trainyard_server.storage.events.notifier import QUEUE_TOPIC, job_topic
from trainyard_server.storage.failures import is_database_failure


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that a person submits to a project, checked as far as that needs no database."""

    project: str
    owner: str
    job: Job
    parsed: JobInput
    now: datetime
    trail: AuditTrail | None = None
    run_limit_s: float | None = None
    """The longest running time of its band."""

    @property
    def is_study(self) -> bool:
        return self.job.training_input.hyperparameters is not None

    def row(self) -> JobRow:
        """A new row in QUEUED."""
        training_input, gang = self.parsed
        scheduling = training_input.scheduling
        return JobRow(
            project=self.project,
            job_id=self.job.job_id,
            owner=self.owner,
            state=JobState.QUEUED,
            training_input=training_input.canonical(),
            gang=gang_to_json(gang),
            priority=scheduling.priority if scheduling else 0,
            run_limit_s=self.run_limit_s,
            labels=dict(self.job.labels),
            created_at=self.now,
            queued_at=self.now,
        )

    def new_job(self, row: JobRow) -> NewJob:
        events = (
            Event("created", "Validating job requirements..."),
            Event("validated", "Job creation request has been successfully validated."),
            Event("queued", f"Job {self.job.job_id} is queued."),
        )
        return NewJob(row, self.parsed, events, self.owner, self.now)


@dataclass(slots=True)
class _Pending:
    """A submission that is to be committed. `row`: once it is."""

    submission: Submission
    row: JobRow | None = None


class Submissions:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._commits = GroupCommit(self._write, is_outage=is_database_failure)

    def check(self, submission: Submission) -> JobRow:
        """The row of a submission that could be added now. Raises what `add` raises."""
        with self._backend.store.read() as reader:
            row = submission.row()
            _Checks(self._backend, reader, [submission]).check(submission, row)
        return row

    def add(self, submission: Submission) -> JobRow:
        """Create the job, durably, in one transaction with those that are submitted at the same time.

        Raises AlreadyExists, FailedPrecondition, InvalidArgument and ResourceExhausted: see `Jobs.create`.
        """
        pending = _Pending(submission)
        self._commits.add(pending)
        assert pending.row is not None  # it is committed
        self._backend.notifier.publish(job_topic(pending.row.key), QUEUE_TOPIC)
        return pending.row

    def check_free(self, project: str, job_id: str) -> None:
        """Raises AlreadyExists for an id that the project has ever had."""
        with self._backend.store.read() as reader:
            _check_free(reader.used_ids(project, [job_id]), job_id)

    def _write(self, group: Sequence[_Pending]) -> Sequence[TrainyardError | None]:
        """The refusals, in order."""
        refusals: list[TrainyardError | None] = []
        with self._backend.store.write_together() as writer:
            checks = _Checks(self._backend, writer, [queued.submission for queued in group])
            accepted: list[NewJob] = []
            written: list[tuple[JobRow, int, Past]] = []
            for queued in group:
                submission, row = queued.submission, queued.submission.row()
                try:
                    seed, past = checks.check(submission, row)
                    if submission.trail is not None:
                        writer.serve(submission.trail)
                except TrainyardError as error:
                    refusals.append(error)
                    continue
                refusals.append(None)
                checks.accepted(submission)
                self._own_bucket(writer, submission)
                accepted.append(submission.new_job(row))
                if submission.is_study:
                    written.append((row, seed, past))
                queued.row = row
            if accepted:
                writer.add_jobs(accepted)
            for row, seed, past in written:
                studies.add(writer, row, seed, past)
        return refusals

    def _own_bucket(self, writer: Writer, submission: Submission) -> None:
        """Note the bucket of a default job-dir as the project's, which lets its jobs write there."""
        bucket = self._backend.default_bucket(submission.project)
        if bucket and not submission.job.training_input.job_dir and buckets.project_of(writer, bucket) is None:
            buckets.save(writer, bucket, submission.project, submission.owner, submission.now)


class _Checks:
    """The checks of new jobs against the database, which is read once for all of them."""

    def __init__(self, backend: Backend, reader: Reader, submissions: Iterable[Submission]) -> None:
        self._backend = backend
        self._reader = reader
        ids: dict[str, set[str]] = {}
        for submission in submissions:
            ids.setdefault(submission.project, set()).add(submission.job.job_id)
        self._used = {project: reader.used_ids(project, sorted(own)) for project, own in ids.items()}
        self._queued: dict[tuple[str, str], int] = {}

    def check(self, submission: Submission, row: JobRow) -> tuple[int, Past]:
        """The seed of a study, and the trials that it resumes."""
        job = submission.job
        _check_free(self._used[submission.project], job.job_id)
        if job.training_input.image_uri:
            _check_engines(self._reader)
        if not job.training_input.job_dir:
            self._check_bucket(submission.project)
        for capability in self._backend.capabilities:
            if capability.check is not None:
                capability.check(self._backend, self._reader, submission.project, job)
        self._check_queue(submission)
        if len(submission.parsed[1]) > 1:
            self._check_job_dir(row, submission.parsed)
        if self._backend.quotas.of(submission.project):
            self._check_quota(row, submission.parsed)
        return check_study(self._reader, submission.project, job) if submission.is_study else (0, [])

    def accepted(self, submission: Submission) -> None:
        """Count the job in the checks of the next ones."""
        self._used[submission.project][submission.job.job_id] = False
        who = submission.project, submission.owner
        if who in self._queued:
            self._queued[who] += 1

    def _check_bucket(self, project: str) -> None:
        """Refuse a job whose default job-dir would be in a bucket that another project made."""
        bucket = self._backend.default_bucket(project)
        if bucket and buckets.project_of(self._reader, bucket) not in (None, project):
            raise FailedPrecondition(
                f"The bucket gs://{bucket} for jobs without a job-dir is another project's: give the job a job-dir."
            )

    def _check_queue(self, submission: Submission) -> None:
        most = self._backend.settings.queued_jobs
        if not most:
            return
        who = submission.project, submission.owner
        if who not in self._queued:
            self._queued[who] = self._reader.queued_jobs(*who, most)
        if self._queued[who] >= most:
            raise ResourceExhausted(
                f"{submission.owner} has {most:,} queued jobs in the project {submission.project}, the limit of this "
                "server (--queued-jobs). Wait until some have started, or cancel some."
            )

    def _check_job_dir(self, row: JobRow, parsed: JobInput) -> None:
        """Refuse a job that only several agents could hold together, and whose job-dir they do not share."""
        problem = unshared(snapshot_of(row, parsed), idle_agents(self._reader), self._backend.shared_dirs)
        if problem:
            raise FailedPrecondition(
                f"The job needs several agents: {problem}. Use a job-dir on gs:// or below a shared directory, or "
                "ask for less."
            )

    def _check_quota(self, row: JobRow, parsed: JobInput) -> None:
        backend, job = self._backend, snapshot_of(row, parsed)
        too_much = beyond_quota(job, idle_agents(self._reader), backend.quotas, backend.shared_dirs)
        if too_much:
            raise ResourceExhausted(
                f"Quota failure for project {row.project}. {too_much} Ask for less, or have the quota raised."
            )


def submission_of(
    project: str, owner: str, job: Job, parsed: JobInput, now: datetime, run_limit_s: float | None = None
) -> Submission:
    """The submission of the request that this thread serves."""
    return Submission(project, owner, job, parsed, now, current_trail(), run_limit_s)


def _check_free(used: dict[str, bool], job_id: str) -> None:
    """Raises AlreadyExists for an id that is in use, or was."""
    if job_id not in used:
        return
    message = "A job with this id already exists."
    if used[job_id]:
        message = "A job with this id existed and was deleted. An id is never used again."
    raise AlreadyExists(Violation("job.job_id", message))


def _check_engines(reader: Reader) -> None:
    """Raises InvalidArgument where no agent can run images."""
    agents = [AgentInfo.model_validate(agent.info) for agent in reader.agents()]
    if agents and not any(agent.runs_images or agent.engine_problem for agent in agents):
        names = ", ".join(f"{agent.name} ({agent.runtime} runtime)" for agent in agents)
        raise InvalidArgument(
            Violation(
                "master_config.image_uri",
                f"no agent here can run container images: {names}. Submit a Python package "
                "(packageUris and pythonModule), or add an agent with a container engine (on one machine: "
                "`trainyard down`, then `trainyard up --runtime auto`, and start Docker; on Slurm: --slurm-images of "
                "its agent, where the nodes have Apptainer).",
            )
        )
