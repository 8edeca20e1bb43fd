"""Use cases of jobs: create, get, list, cancel, and change the labels."""

import base64
import binascii
import hashlib
import json
import logging
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.config.fields import rfc3339
from trainyard_protocol.config.validation import checked_job
from trainyard_protocol.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Violation,
)
from trainyard_protocol.machines import gang
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_protocol.sync import AgentInfo
from trainyard_protocol.training_input import Job, LabelsPatch, TrainingInput, parse
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.removal import remove_job
from trainyard_server.control.snapshots import idle_agents, snapshot_of
from trainyard_server.domain.lifecycle.decisions import CANCELLED_BY_USER
from trainyard_server.domain.lifecycle.stalls import check_labels
from trainyard_server.domain.permissions import Caller
from trainyard_server.domain.scheduling.scheduler import beyond_quota
from trainyard_server.storage.db import filters
from trainyard_server.storage.db.job_inputs import JobInput, gang_to_json
from trainyard_server.storage.db.models import JobRow
from trainyard_server.storage.db.reader import Reader
from trainyard_server.storage.db.repository import Event
from trainyard_server.storage.events.notifier import QUEUE_TOPIC, job_topic
from trainyard_server.storage.failures import failure_detail, failure_reason
from trainyard_server.storage.uploads import SCHEME

DEFAULT_PAGE_SIZE = 20
MAX_PAGE_SIZE = 100

logger = logging.getLogger(__name__)

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_PATCHABLE = ("labels", "etag")


class Jobs:
    def __init__(self, backend: Backend, controller: Controller) -> None:
        self._backend = backend
        self._controller = controller

    def create(
        self, caller: Caller, project: str, body: object, validate_only: bool = False
    ) -> dict[str, Any]:
        """Create a job of the caller in QUEUED, durably. With `validate_only` nothing is created.

        Raises InvalidArgument with every violation, FailedPrecondition for packages that were never uploaded,
        AlreadyExists for an id that the project has ever had, ResourceExhausted for a job that alone exceeds its
        project's quota.
        """
        if not _PROJECT.fullmatch(project):
            raise InvalidArgument(
                Violation("parent", f"{project!r} is not a project: letters, digits, '_', '.', ':' and '-'.")
            )
        job = checked_job(body, self._backend.catalog)
        check_labels(job.labels)
        self._check_packages(job.training_input)
        now = self._backend.clock()
        parsed = job.training_input, tuple(gang(job.training_input, self._backend.catalog))
        row = _new_row(caller, project, job, parsed, now)
        if validate_only:
            with self._backend.store.read() as reader:
                _check_installation(reader, project, job)
                self._check_quota(reader, row, parsed)
            return v1_job(row)
        with self._backend.store.write() as writer:
            _check_installation(writer, project, job)
            self._check_quota(writer, row, parsed)
            writer.add_job(
                row,
                parsed,
                now,
                (
                    Event("created", "Validating job requirements..."),
                    Event("validated", "Job creation request has been successfully validated."),
                    Event("queued", f"Job {job.job_id} is queued."),
                ),
            )
            created = v1_job(row)
        self._controller.write_log(row.key)
        self._backend.notifier.publish(QUEUE_TOPIC)
        return created

    def get(self, project: str, job_id: str) -> dict[str, Any]:
        with self._backend.store.read() as reader:
            return v1_job(known_job(reader, project, job_id))

    def check_free(self, project: str, job_id: str) -> None:
        """Raises AlreadyExists for an id that the project has ever had."""
        with self._backend.store.read() as reader:
            _check_free(reader, project, job_id)

    def list(
        self, project: str, filter_text: str = "", page_size: int | None = None, page_token: str = ""
    ) -> dict[str, Any]:
        """One page, the newest job first: `{"jobs": [...], "nextPageToken": ...}`, `{}` for nothing. A page of large
        jobs has fewer of them."""
        expression = filters.parse(filter_text)
        if page_size is not None and page_size < 0:
            raise InvalidArgument(Violation("page_size", f"must be 0 or more; this is {page_size}."))
        size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        below = _read_token(page_token, filter_text) if page_token else None
        condition = filters.to_sql(expression) if expression is not None else None
        with self._backend.store.read() as reader:
            rows, more = reader.jobs(project, condition, below, size)
            page = [v1_job(row) for row in rows]
        answer: dict[str, Any] = {"jobs": page} if page else {}
        if more:
            answer["nextPageToken"] = _token(rows[-1].key, filter_text)
        return answer

    def cancel(self, caller: Caller, project: str, job_id: str) -> dict[str, Any]:
        """Cancel the job. Does nothing if it has ended or is being cancelled.

        Raises PermissionDenied for a job that the caller may not change, NotFound.
        """
        with self._backend.store.write() as writer:
            job = known_job(writer, project, job_id)
            _check_change(caller, job)
            if job.state in FINAL_JOB_STATES or job.state is JobState.CANCELLING:
                return {}
            writer.move_job(
                job,
                JobState.CANCELLING,
                self._backend.clock(),
                f"{caller.name} asked to cancel the job.",
                stop_message=CANCELLED_BY_USER,
                waiting="",
                waiting_kind="",
                position=0,
            )
        self._backend.notifier.publish(job_topic(job.key), QUEUE_TOPIC)
        try:
            self._controller.advance(job.key)
        except Exception as error:
            if failure_reason(error) is None and not isinstance(error, OSError):
                raise
            logger.warning(
                "Job %s is being cancelled; the next tick goes on with it: %s",
                job.job_id,
                failure_detail(error),
            )
        return {}

    def delete(self, caller: Caller, project: str, job_id: str) -> None:
        """Delete a job that has ended: its record, its log and its usage. Its id is never used again.

        Raises PermissionDenied for a job that the caller may not change, FailedPrecondition for one that has not ended,
        NotFound.
        """
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
        _check_change(caller, job)
        if job.state not in FINAL_JOB_STATES:
            raise FailedPrecondition(
                f"The job {job_id} is {job.state}. Only a job that has ended can be deleted: cancel it first."
            )
        remove_job(self._backend, job.key, str(caller))

    def patch(
        self, caller: Caller, project: str, job_id: str, body: object, update_mask: str
    ) -> dict[str, Any]:
        """Replace the labels. With `etag` in the mask, raises Aborted unless it is the job's present one.

        Raises PermissionDenied for a job that the caller may not change, NotFound.
        """
        mask = [to_camel(path.strip()) for path in update_mask.split(",") if path.strip()]
        unknown = [path for path in mask if path not in _PATCHABLE]
        if unknown or not mask:
            raise InvalidArgument(
                Violation(
                    "update_mask",
                    f"must name labels, or labels,etag; this is {update_mask!r}. Nothing else of a job can change.",
                )
            )
        patch = parse(LabelsPatch, _patchable_fields(body), "job")
        with self._backend.store.write() as writer:
            job = known_job(writer, project, job_id)
            _check_change(caller, job)
            if "etag" in mask and patch.etag != etag(job):
                raise Aborted(
                    f"Field: job.etag Error: the job has changed since it was read (its etag is {etag(job)}): "
                    "read it again, then patch."
                )
            if "labels" in mask:
                check_labels(patch.labels)
                writer.set_labels(job, dict(patch.labels), self._backend.clock())
            patched = v1_job(job)
        self._backend.notifier.publish(job_topic(job.key))
        return patched

    def _check_quota(self, reader: Reader, job: JobRow, parsed: JobInput) -> None:
        if not self._backend.quotas.of(job.project):
            return
        too_much = beyond_quota(snapshot_of(job, parsed), idle_agents(reader), self._backend.quotas)
        if too_much:
            raise ResourceExhausted(
                f"Quota failure for project {job.project}. {too_much} Ask for less, or have the quota raised."
            )

    def _check_packages(self, training_input: TrainingInput) -> None:
        wrong, missing = [], []
        for number, uri in enumerate(training_input.package_uris):
            if uri.startswith(SCHEME):
                if not self._backend.uploads.has(uri):
                    missing.append(uri)
            elif not uri.startswith("gs://"):
                text = f"must start with gs:// or {SCHEME}; this is {uri!r}."
                wrong.append(Violation(f"package_uris[{number}]", text))
        if wrong:
            raise InvalidArgument(wrong)
        if missing:
            text = f"The provided paths [{', '.join(missing)}] cannot be read: they were never uploaded here."
            raise FailedPrecondition(Violation("package_uris", text))


def known_job(reader: Reader, project: str, job_id: str) -> JobRow:
    """Raises NotFound."""
    job = reader.job(project, job_id)
    if job is not None:
        return job
    deleted = reader.deleted_job(project, job_id)
    when = (
        ""
        if deleted is None
        else f" It was deleted on {deleted.deleted_at:%Y-%m-%d} by {deleted.deleted_by}."
    )
    raise NotFound(f"Field: name Error: The job projects/{project}/jobs/{job_id} was not found.{when}")


def _check_change(caller: Caller, job: JobRow) -> None:
    """Raises PermissionDenied."""
    if caller.may_change(job.owner):
        return
    ownership = f"belongs to {job.owner}" if job.owner else "has no known owner"
    who = "A submitter of that name, or an admin," if job.owner else "An admin"
    raise PermissionDenied(f"You are {caller}; the job {job.job_id} {ownership}. {who} may change it.")


def v1_job(job: JobRow) -> dict[str, Any]:
    """The job as the v1 API returns it: `trainingInput` exactly as it was sent."""
    answer: dict[str, Any] = {
        "jobId": job.job_id,
        "trainingInput": job.training_input,
        "createTime": rfc3339(job.created_at),
    }
    if job.started_at is not None:
        answer["startTime"] = rfc3339(job.started_at)
    if job.ended_at is not None:
        answer["endTime"] = rfc3339(job.ended_at)
    answer["state"] = job.state.value
    if job.error_message:
        answer["errorMessage"] = job.error_message
    answer["trainingOutput"] = {}
    if job.labels:
        answer["labels"] = job.labels
    answer["etag"] = etag(job)
    if job.state is JobState.QUEUED and job.position:
        answer["jobPosition"] = str(job.position)
    return answer


def etag(job: JobRow) -> str:
    """The etag: bytes in base64, new after each change of a patchable field."""
    text = f"{job.revision or 0} {json.dumps(job.labels, sort_keys=True)}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:9]).decode()


def _new_row(caller: Caller, project: str, job: Job, parsed: JobInput, now: datetime) -> JobRow:
    training_input, gang = parsed
    scheduling = training_input.scheduling
    return JobRow(
        project=project,
        job_id=job.job_id,
        owner=caller.name,
        state=JobState.QUEUED,
        training_input=training_input.canonical(),
        gang=gang_to_json(gang),
        priority=scheduling.priority if scheduling else 0,
        labels=dict(job.labels),
        created_at=now,
        queued_at=now,
    )


def _check_installation(reader: Reader, project: str, job: Job) -> None:
    """Check the id against the project's jobs, and the image against the agents."""
    _check_free(reader, project, job.job_id)
    if not job.training_input.image_uri:
        return
    agents = [AgentInfo.model_validate(agent.info) for agent in reader.agents()]
    if agents and not any(agent.runs_images or agent.engine_problem for agent in agents):
        names = ", ".join(f"{agent.name} ({agent.runtime} runtime)" for agent in agents)
        raise InvalidArgument(
            Violation(
                "master_config.image_uri",
                f"no agent here can run container images: {names}. Submit a Python package "
                "(packageUris and pythonModule), or add an agent with a container engine (on one machine: "
                "`trainyard down`, then `trainyard up --runtime auto`, and start Docker).",
            )
        )


def _check_free(reader: Reader, project: str, job_id: str) -> None:
    if reader.job(project, job_id) is not None:
        raise AlreadyExists(Violation("job.job_id", "A job with this id already exists."))
    if reader.deleted_job(project, job_id) is not None:
        message = "A job with this id existed and was deleted. An id is never used again."
        raise AlreadyExists(Violation("job.job_id", message))


def _patchable_fields(body: object) -> object:
    """The fields of a patch without those of a whole job that cannot change."""
    if not isinstance(body, Mapping):
        return body
    known = {to_camel(name) for name in Job.model_fields} - set(_PATCHABLE)
    output = {"createTime", "startTime", "endTime", "state", "errorMessage", "trainingOutput", "jobPosition"}
    return {key: value for key, value in body.items() if to_camel(str(key)) not in known | output}


def _token(key: int, filter_text: str) -> str:
    return base64.urlsafe_b64encode(f"{key}:{_fingerprint(filter_text)}".encode()).decode()


def _read_token(token: str, filter_text: str) -> int:
    try:
        key, _, fingerprint = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
        below = int(key)
    except (ValueError, binascii.Error):
        below = -1
        fingerprint = ""
    if not 0 <= below < 2**63:
        raise InvalidArgument(Violation("page_token", "is not one of this server."))
    if fingerprint != _fingerprint(filter_text):
        raise InvalidArgument(
            Violation(
                "page_token", "belongs to another filter: use a page token with the filter that it came with."
            )
        )
    return below


def _fingerprint(filter_text: str) -> str:
    return hashlib.sha256(filter_text.encode()).hexdigest()[:12]
