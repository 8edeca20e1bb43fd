"""Use cases of jobs: create, get, list, cancel, and change the labels."""

import base64
import binascii
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Violation,
    quoted,
)
from trainyard_protocol.fields import seconds
from trainyard_protocol.job.config.programs import first_like
from trainyard_protocol.job.config.validation import checked_job, image_uris
from trainyard_protocol.job.custom_job_training import check_given
from trainyard_protocol.job.engine_allowance import violations
from trainyard_protocol.job.machines import gang
from trainyard_protocol.job.runtimes import check_version, load_runtimes
from trainyard_protocol.job.training_input import Band, Job, LabelsPatch, Scheduling, TrainingInput, parse
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.removal import remove_job
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.domain.filters.filter_syntax import Expression
from trainyard_server.domain.lifecycle.decisions import CANCELLED_BY_USER
from trainyard_server.domain.lifecycle.retries import check_patterns
from trainyard_server.domain.lifecycle.stalls import check_labels
from trainyard_server.domain.tuning.measurements import newest_values
from trainyard_server.services.jobs.filter_notes import filter_notes
from trainyard_server.services.jobs.package_uris import check_package_uris
from trainyard_server.services.jobs.submission_notes import SubmissionNotes
from trainyard_server.services.jobs.submissions import Submissions, submission_of
from trainyard_server.services.jobs.training_output import (
    new_training_output,
    training_output,
    training_outputs,
    web_access_uris,
    whole_second,
)
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries import filters
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import job_values, studies
from trainyard_server.storage.events.notifier import QUEUE_TOPIC, job_topic
from trainyard_server.storage.failures import failure_detail, failure_reason

DEFAULT_PAGE_SIZE = 20
MAX_PAGE_SIZE = 100

MAX_NOTE = 4000
"""Limit of a note about a job, in characters."""

logger = logging.getLogger(__name__)

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
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
        self._check_operator(caller)
        job = checked_job(body, self._backend.catalog)
        check_given(job)
        check_labels(job.labels)
        check_patterns(job.training_input)
        self._check_engine_options(project, job.training_input)
        self._check_region(job.training_input.region)
        self._check_runtime_version(job.training_input.runtime_version)
        check_package_uris(self._backend, caller, job.training_input)
        self._check_images(project, job.training_input)
        limit_s = self._check_band(caller, project, job.training_input)
        parsed = job.training_input, tuple(gang(job.training_input, self._backend.catalog))
        submission = submission_of(project, caller.name, job, parsed, self._backend.clock(), limit_s)
        for line in self._notes.of(caller, project, job.training_input):
            note(line)
        if validate_only:
            return v1_job(self._submissions.check(submission), {})
        row = self._submissions.add(submission)
        self._controller.write_log_soon(row.key)
        return v1_job(row, new_training_output(job.training_input))

    def _check_band(self, caller: Caller, project: str, training_input: TrainingInput) -> float | None:
        """The longest running time of the job's band, in seconds; None: any. Raises InvalidArgument for a band or a
        priority that the caller may not ask for, and for a longer maxRunningTime."""
        sharing = self._backend.quotas.sharing
        scheduling = training_input.scheduling or Scheduling()
        rules, band, wrong = sharing.of(project), scheduling.band, []
        role = rules.role_of(band)
        if not caller.may(role, project):
            wrong.append(
                Violation(
                    "scheduling.band",
                    f"{band.lower()} is for those with the role {role} in the project {project}; you may ask for "
                    f"{', '.join(other.lower() for other in Band if caller.may(rules.role_of(other), project))}.",
                )
            )
        most = rules.max_priority
        if most is not None and scheduling.priority > most and not caller.may(Role.ADMIN, project):
            text = f"must be at most {most} in the project {project}, unless an admin of it submits the job"
            wrong.append(Violation("scheduling.priority", f"{text}; this is {scheduling.priority}."))
        limit = sharing.run_limits.get(band)
        if limit is not None and "max_running_time" in scheduling.model_fields_set:
            asked_s = seconds(scheduling.max_running_time)
            if asked_s > limit.total_seconds():
                text = f"must be at most {limit.total_seconds():.0f}s in the band {band.lower()}; this is {asked_s:g}s."
                wrong.append(Violation("scheduling.max_running_time", text))
        if wrong:
            raise InvalidArgument(wrong)
        return None if limit is None else limit.total_seconds()

    def get(self, project: str, job_id: str, site: str) -> dict[str, Any]:
        """A job. `site` is the address of the dashboard, where the links to its replicas lead."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            links = web_access_uris(job, site)
            return _with_pointer(v1_job(job, training_output(reader, job) | links))

    def check_free(self, project: str, job_id: str) -> None:
        """Raises AlreadyExists for an id that the project has ever had."""
        self._submissions.check_free(project, job_id)

    def list(
        self,
        project: str,
        filter_text: str = "",
        page_size: int | None = None,
        page_token: str = "",
        *,
        with_results: bool = False,
        parse: Callable[[str], Expression | None] = filters.parse,
        note: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """One page, the newest job first: `{"jobs": [...], "nextPageToken": ...}`, `{}` for nothing. A page of large
        jobs has fewer of them. `with_results`: each also with its owner, its duration in seconds, its parameters, and
        the newest value of each metric. `parse` reads the filter. `note` gets each line about a filter
        that finds nothing."""
        expression = parse(filter_text)
        if page_size is not None and page_size < 0:
            raise InvalidArgument(Violation("page_size", f"must be 0 or more; this is {page_size}."))
        size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        last = _read_token(page_token, filter_text) if page_token else ""
        with self._backend.store.read() as reader:
            condition = None
            if expression is not None:
                condition = filters.to_sql(expression, filters.common_in(reader, expression))
            below = reader.key_of(project, last) if last else None
            if last and below is None:
                raise _foreign_token()
            trials = filters.finds_trials(expression)
            rows, more = reader.jobs(project, condition, below, size, trials=trials)
            for line in () if rows or last else filter_notes(reader, project, expression):
                note(line)
            outputs = training_outputs(reader, rows)
            page = [_with_pointer(v1_job(row, outputs[row.key])) for row in rows]
            if with_results:
                keys = [row.key for row in rows]
                reported = studies.summaries(reader, keys)
                values = job_values.values_of(reader, keys, None, ())
                now = self._backend.clock()
                page = [
                    job | _results(row, values[row.key].parameters, reported.get(row.key, ()), now)
                    for job, row in zip(page, rows, strict=True)
                ]
        answer: dict[str, Any] = {"jobs": page} if page else {}
        if more:
            answer["nextPageToken"] = _token(rows[-1].job_id, filter_text)
        return answer

    def last_success_like(self, project: str, job_id: str) -> str:
        """The newest other job of the project that succeeded with the same program; "" without one among the last
        ones. Raises NotFound."""
        with self._backend.store.read() as reader:
            training_input = known_job(reader, project, job_id).training_input
            rows, _ = reader.jobs(project, JobRow.state == JobState.SUCCEEDED, None, DEFAULT_PAGE_SIZE)
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

    def _check_operator(self, caller: Caller) -> None:
        """On a service of one person that others reach, jobs have the rights of that person on its machine: its files,
        and the token of its agent."""
        if self._backend.settings.only_operators_submit and not caller.is_operator:
            raise PermissionDenied(
                f"You are {caller}. Jobs of this service run with the rights of the user who started it (trainyard up "
                "--listen), so only operators submit them. One of them makes others (trainyard projects add-member "
                "NAME --role admin --all-projects); for people who shall not have these rights the server runs by "
                "itself (docs/how-to/server.md)."
            )

    def _check_region(self, region: str) -> None:
        regions = self._backend.settings.regions
        if regions and region and region not in regions:
            raise InvalidArgument(
                Violation(
                    "region",
                    f"The provided GCE region {quoted(region)} is not available. Options are [{', '.join(regions)}].",
                )
            )

    def _check_runtime_version(self, version: str) -> None:
        """Versions are those of the shipped table, and of the runtimes files of the agents."""
        shipped = _shipped_versions()
        if not version or version in shipped:
            return
        with self._backend.store.read() as reader:
            sites = [name for agent in reader.agents() for name in agent.info.get("runtime_versions", ())]
        check_version(version, tuple(dict.fromkeys([*shipped, *sites])))

    def _check_engine_options(self, project: str, training_input: TrainingInput) -> None:
        catalog = self._backend.catalog
        refused = list(violations(training_input.engine_options, catalog.engine_options, project, catalog.file))
        if refused:
            raise InvalidArgument(refused)

    def _check_images(self, project: str, training_input: TrainingInput) -> None:
        images = self._backend.quota_file.images
        refused = [
            Violation(name, refusal)
            for name, uri in image_uris(training_input).items()
            if (refusal := images.refusal(project, uri))
        ]
        if refused:
            raise InvalidArgument(refused)


@cache
def _shipped_versions() -> tuple[str, ...]:
    return load_runtimes().offered


def check_project(project: str) -> None:
    """Raises InvalidArgument for what cannot be a project's name."""
    if not _PROJECT.fullmatch(project):
        raise InvalidArgument(
            Violation("parent", f"{project!r} is not a project: letters, digits, '_', '.', ':' and '-'.")
        )


def known_job(reader: Reader, project: str, job_id: str) -> JobRow:
    """Raises NotFound."""
    job = reader.job(project, job_id)
    if job is not None:
        return job
    deleted = reader.deleted_job(project, job_id)
    when = "" if deleted is None else f" It was deleted on {deleted.deleted_at:%Y-%m-%d} by {deleted.deleted_by}."
    raise NotFound(f"Field: name Error: The job projects/{project}/jobs/{job_id} was not found.{when}")


def check_change(caller: Caller, job: JobRow) -> None:
    """Raises PermissionDenied."""
    if caller.may_change(job.project, job.owner):
        return
    ownership = f"belongs to {job.owner}" if job.owner else "has no known owner"
    who = "A submitter of that name, or an admin," if job.owner else "An admin"
    raise PermissionDenied(
        f"You are {caller.described_in(job.project)}; the job {job.job_id} {ownership}. {who} may change it."
    )


def v1_job(job: JobRow, output: Mapping[str, Any]) -> dict[str, Any]:
    """The job as the v1 API returns it: `trainingInput` exactly as it was sent. `output` is its `trainingOutput`."""
    answer: dict[str, Any] = {
        "jobId": job.job_id,
        "trainingInput": job.training_input,
        "createTime": whole_second(job.created_at),
    }
    if job.started_at is not None:
        answer["startTime"] = whole_second(job.started_at)
    if job.ended_at is not None:
        answer["endTime"] = whole_second(job.ended_at)
    answer["state"] = job.state.value
    if job.error_message:
        answer["errorMessage"] = job.error_message
    answer["trainingOutput"] = dict(output)
    if job.labels:
        answer["labels"] = job.labels
    answer["etag"] = etag(job)
    if job.state is JobState.QUEUED and job.position:
        answer["jobPosition"] = str(job.position)
    return answer


def _results(
    job: JobRow, parameters: Mapping[str, str], summaries: Iterable[Mapping[str, Any]], now: datetime
) -> dict[str, Any]:
    """The fields of a list for programs beside the API's Job. `summaries`: those of its primary, run by run."""
    results: dict[str, Any] = {"owner": job.owner}
    if job.started_at is not None:
        results["duration"] = round(((job.ended_at or now) - job.started_at).total_seconds())
    if parameters:
        results["params"] = dict(parameters)
    if metrics := newest_values(summaries):
        results["metrics"] = metrics
    return results


def _with_pointer(answer: dict[str, Any]) -> dict[str, Any]:
    """The job, its errorMessage with where its log is, as in the real service."""
    if answer["state"] != JobState.FAILED:
        return answer
    where = f"`trainyard jobs stream-logs {answer['jobId']}`"
    pointer = f"To find out more about why your job exited please check the logs: {where}"
    return {**answer, "errorMessage": f"{answer['errorMessage']}\n\n{pointer}"}


def etag(job: JobRow) -> str:
    """The etag: bytes in base64, new after each change of a patchable field."""
    text = f"{job.revision or 0} {json.dumps(job.labels, sort_keys=True)}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:9]).decode()


def _patchable_fields(body: object) -> object:
    """The fields of a patch without those of a whole job that cannot change."""
    if not isinstance(body, Mapping):
        return body
    fixed = {to_camel(name) for name in Job.model_fields} - set(_PATCHABLE)
    output = {"createTime", "startTime", "endTime", "state", "errorMessage", "trainingOutput", "jobPosition"}
    return {key: value for key, value in body.items() if to_camel(str(key)) not in fixed | output}


def _token(job_id: str, filter_text: str) -> str:
    """Names the last job of a page. Its key would tell how many jobs the server has."""
    return base64.urlsafe_b64encode(f"{job_id}:{_fingerprint(filter_text)}".encode()).decode()


def _read_token(token: str, filter_text: str) -> str:
    try:
        job_id, _, fingerprint = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
    except (ValueError, binascii.Error):
        raise _foreign_token() from None
    if not job_id:
        raise _foreign_token()
    if fingerprint != _fingerprint(filter_text):
        raise InvalidArgument(
            Violation("page_token", "belongs to another filter: use a page token with the filter that it came with.")
        )
    return job_id


def _foreign_token() -> InvalidArgument:
    return InvalidArgument(Violation("page_token", "is not one of this server."))


def _fingerprint(filter_text: str) -> str:
    return hashlib.sha256(filter_text.encode()).hexdigest()[:12]
