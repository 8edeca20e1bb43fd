"""Use cases of jobs: create, get, cancel, delete, and change the labels."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import Aborted, FailedPrecondition, InvalidArgument, Violation
from trainyard_protocol.job.config.programs import first_like
from trainyard_protocol.job.config.validation import checked_job
from trainyard_protocol.job.custom_job_training import check_given
from trainyard_protocol.job.machines import gang
from trainyard_protocol.job.parsing import parse
from trainyard_protocol.job.training_input import Job, LabelsPatch
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.removal import remove_job
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.lifecycle.decisions import CANCELLED_BY_USER
from trainyard_server.domain.lifecycle.retries import check_patterns
from trainyard_server.domain.lifecycle.stalls import check_labels
from trainyard_server.services.jobs.known_jobs import check_change, check_project, known_job
from trainyard_server.services.jobs.site_checks import SiteChecks
from trainyard_server.services.jobs.submission_notes import SubmissionNotes
from trainyard_server.services.jobs.submissions import Submissions, submission_of
from trainyard_server.services.jobs.training_output import new_training_output, training_output, web_access_uris
from trainyard_server.services.jobs.v1_job import etag, v1_job, with_pointer
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.events.notifier import QUEUE_TOPIC, job_topic
from trainyard_server.storage.failures import failure_detail, failure_reason

_LAST = 20
"""Jobs that succeeded last, among which one with the same program is looked for."""

MAX_NOTE = 4000
"""Limit of a note about a job, in characters."""

logger = logging.getLogger(__name__)

_PATCHABLE = ("labels", "etag")


class Jobs:
    def __init__(self, backend: Backend, controller: Controller) -> None:
        self._backend = backend
        self._controller = controller
        self._submissions = Submissions(backend)
        self._notes = SubmissionNotes(backend)

    def create(
        self,
        caller: Caller,
        project: str,
        body: object,
        validate_only: bool = False,
        note: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Create a job of the caller in QUEUED, durably. With `validate_only` nothing is created. `note` gets each line
        about what is accepted, but may not be meant.

        Raises PermissionDenied where only operators submit, InvalidArgument with every violation, and for images and
        engine options that the project may not have, FailedPrecondition for packages that cannot be read
        (`check_package_uris`) and secrets that the project does not have, AlreadyExists for an id that the project has
        ever had, ResourceExhausted for a job that alone exceeds its project's quota, and for one too many in the queue.
        """
        check_project(project)
        checks = SiteChecks(self._backend, caller, project)
        checks.check_operator()
        job = checked_job(body, self._backend.catalog)
        check_given(job)
        check_labels(job.labels)
        check_patterns(job.training_input)
        limit_s = checks.check(job.training_input)
        parsed = job.training_input, tuple(gang(job.training_input, self._backend.catalog))
        submission = submission_of(project, caller.name, job, parsed, self._backend.clock(), limit_s)
        for line in self._notes.of(caller, project, job.training_input):
            note(line)
        if validate_only:
            return v1_job(self._submissions.check(submission), {})
        row = self._submissions.add(submission)
        self._controller.write_log_soon(row.key)
        return v1_job(row, new_training_output(job.training_input))

    def get(self, project: str, job_id: str, site: str) -> dict[str, Any]:
        """A job. `site` is the address of the dashboard, where the links to its replicas lead."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            links = web_access_uris(job, site)
            return with_pointer(v1_job(job, training_output(reader, job) | links))

    def check_free(self, project: str, job_id: str) -> None:
        """Raises AlreadyExists for an id that the project has ever had."""
        self._submissions.check_free(project, job_id)

    def last_success_like(self, project: str, job_id: str) -> str:
        """The newest other job of the project that succeeded with the same program; "" without one among the last
        ones. Raises NotFound."""
        with self._backend.store.read() as reader:
            training_input = known_job(reader, project, job_id).training_input
            rows, _ = reader.jobs(project, JobRow.state == JobState.SUCCEEDED, None, _LAST)
        return first_like(training_input, ((row.job_id, row.training_input) for row in rows if row.job_id != job_id))

    def cancel(self, caller: Caller, project: str, job_id: str) -> dict[str, Any]:
        """Cancel the job. Does nothing if it has ended or is being cancelled.

        Raises PermissionDenied for a job that the caller may not change, NotFound.
        """
        with self._backend.store.write(caller.name) as writer:
            job = known_job(writer, project, job_id)
            check_change(caller, job)
            if job.state in FINAL_JOB_STATES or job.state is JobState.CANCELLING:
                return {}
            writer.move_job(
                job,
                JobState.CANCELLING,
                self._backend.clock(),
                f"{caller.name} asked to cancel the job.",
                stop_message=CANCELLED_BY_USER,
            )
        self._backend.notifier.publish(job_topic(job.key), QUEUE_TOPIC)
        try:
            self._controller.advance(job.key)
        except Exception as error:
            if failure_reason(error) is None and not isinstance(error, OSError):
                raise
            logger.warning(
                "Job %s is being cancelled; the next tick goes on with it: %s", job.job_id, failure_detail(error)
            )
        return {}

    def delete(self, caller: Caller, project: str, job_id: str) -> None:
        """Delete a job that has ended: its record, its log and its usage, and its trials. Its id is never used again.

        Raises PermissionDenied for a job that the caller may not change, FailedPrecondition for one that has not ended
        and for a trial, NotFound.
        """
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
        check_change(caller, job)
        if job.study_key is not None:
            study = job.job_id.partition(".")[0]
            raise FailedPrecondition(f"{job_id} is a trial of {study}. It is deleted with its study, {study}.")
        if job.state not in FINAL_JOB_STATES:
            raise FailedPrecondition(
                f"The job {job_id} is {job.state}. Only a job that has ended can be deleted: cancel it first."
            )
        remove_job(self._backend, job.key, str(caller))

    def patch(self, caller: Caller, project: str, job_id: str, body: object, update_mask: str) -> dict[str, Any]:
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
        with self._backend.store.write(caller.name) as writer:
            job = known_job(writer, project, job_id)
            check_change(caller, job)
            if "etag" in mask and patch.etag != etag(job):
                raise Aborted(
                    f"Field: job.etag Error: the job has changed since it was read (its etag is {etag(job)}): "
                    "read it again, then patch."
                )
            if "labels" in mask:
                check_labels(patch.labels)
                writer.set_labels(job, dict(patch.labels), self._backend.clock())
            patched = v1_job(job, training_output(writer, job))
        self._backend.notifier.publish(job_topic(job.key))
        return patched

    def set_note(self, caller: Caller, project: str, job_id: str, note: str) -> str:
        """Replace the note about a job. Raises InvalidArgument, PermissionDenied for a job that the caller may not
        change, NotFound."""
        note = note.strip()
        if len(note) > MAX_NOTE:
            raise InvalidArgument(Violation("note", f"has at most {MAX_NOTE} characters; this has {len(note)}."))
        with self._backend.store.write(caller.name) as writer:
            job = known_job(writer, project, job_id)
            check_change(caller, job)
            writer.set_note(job, note)
        self._backend.notifier.publish(job_topic(job.key))
        return note


def _patchable_fields(body: object) -> object:
    """The fields of a patch without those of a whole job that cannot change."""
    if not isinstance(body, Mapping):
        return body
    fixed = {to_camel(name) for name in Job.model_fields} - set(_PATCHABLE)
    output = {"createTime", "startTime", "endTime", "state", "errorMessage", "trainingOutput", "jobPosition"}
    return {key: value for key, value in body.items() if to_camel(str(key)) not in fixed | output}
