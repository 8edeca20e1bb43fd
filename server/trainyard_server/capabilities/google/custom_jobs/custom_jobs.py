"""Use cases of the custom jobs of Vertex AI: those of jobs, in the terms of custom jobs.

Lists have the jobs alone that came as custom jobs, since a custom job has a jobSpec, and other jobs have none.
"""

import secrets
from functools import partial
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import AlreadyExists, InvalidArgument, NotFound
from trainyard_protocol.job import custom_job_training as training
from trainyard_protocol.job.custom_jobs import CustomJob
from trainyard_server.capabilities.google.custom_jobs.training import STATES, custom_job, name_of
from trainyard_server.capabilities.google.ml_v1.resources import GoogleResources
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.filters.filter_syntax import And, Expression, FilterToken, Term
from trainyard_server.services.jobs.job_lists import JobLists
from trainyard_server.services.jobs.jobs import Jobs
from trainyard_server.storage.db.queries import filters
from trainyard_server.storage.db.tables.audit_trail import current_trail

_DISPLAY_NAME = "trainingInput.customJob.displayName"
_FIELDS = {"displayName": _DISPLAY_NAME, "name": "jobId", "error.message": "errorMessage"}
_EMPTY = "type.googleapis.com/google.protobuf.Empty"


class CustomJobs:
    def __init__(self, backend: Backend, jobs: Jobs, lists: JobLists, resources: GoogleResources) -> None:
        self._backend = backend
        self._jobs = jobs
        self._lists = lists
        self._resources = resources

    def create(self, caller: Caller, project: str, location: str, asked: CustomJob) -> dict[str, Any]:
        """Create a job from a custom job. Raises what `Jobs.create` raises, with fields of the custom job; NotFound for
        a location that jobs may not name."""
        self._resources.check_location(project, location)
        job_id = training.new_job_id(asked.display_name, self._backend.clock(), secrets.token_hex(3))
        request = training.create_request(asked, job_id, location)
        _audit(job_id)
        try:
            return custom_job(project, self._jobs.create(caller, project, request))
        except AlreadyExists:  # an id of its own, not of the caller
            raise
        except InvalidArgument as error:
            raise training.renamed(error, asked) from error

    def get(self, project: str, location: str, job_id: str, site: str) -> dict[str, Any]:
        """A custom job. Raises NotFound, also for a job that did not come as one, or is in another location."""
        job = self._jobs.get(project, job_id, site)
        sent = job["trainingInput"]
        if "customJob" not in sent or sent["region"] != location:
            raise NotFound(f"Field: name Error: The custom job {name_of(project, location, job_id)} was not found.")
        return custom_job(project, job)

    def list(
        self, project: str, location: str, filter_text: str = "", page_size: int | None = None, page_token: str = ""
    ) -> dict[str, Any]:
        """One page, the newest job first: `{"customJobs": [...], "nextPageToken": ...}`, `{}` for nothing."""
        self._resources.check_location(project, location)
        answer = self._lists.page(project, filter_text, page_size, page_token, parse=partial(_expression, location))
        page = [custom_job(project, job) for job in answer.pop("jobs", ())]
        return {**({"customJobs": page} if page else {}), **answer}

    def cancel(self, caller: Caller, project: str, location: str, job_id: str) -> dict[str, Any]:
        """Cancel the job. Does nothing if it has ended. Raises PermissionDenied, NotFound."""
        self.get(project, location, job_id, "")
        _audit(job_id)
        return self._jobs.cancel(caller, project, job_id)

    def delete(self, caller: Caller, project: str, location: str, job_id: str) -> dict[str, Any]:
        """Delete a job that has ended, and answer with an operation that is done. Raises PermissionDenied,
        FailedPrecondition, NotFound."""
        self.get(project, location, job_id, "")
        _audit(job_id)
        self._jobs.delete(caller, project, job_id)
        name = f"projects/{project}/locations/{location}/operations/delete-{job_id}"
        return {"name": name, "done": True, "response": {"@type": _EMPTY}}


def _audit(job_id: str) -> None:
    """Name the job in the audit as calls of the other APIs do: without its location."""
    if trail := current_trail():
        trail.subject = job_id


def _expression(location: str, text: str) -> Expression:
    """A filter of custom jobs as one of jobs."""
    own = (Term(_DISPLAY_NAME, "=", "*"), Term("trainingInput.region", "=", location))
    asked = filters.parse(text, _as_of_jobs)
    return And((*own, asked) if asked is not None else own)


def _as_of_jobs(name: FilterToken, value: FilterToken) -> tuple[FilterToken, FilterToken]:
    """`display_name = "a"` is `trainingInput.customJob.displayName = "a"`, `JOB_STATE_PENDING` is `PREPARING`."""
    field = to_camel(name.text) if "." not in name.text else name.text
    if field == "state":
        state = next((state for state, theirs in STATES.items() if theirs == value.text.upper()), None)
        return name, FilterToken(value.kind, state.value, value.column) if state is not None else value
    if field == "name":
        value = FilterToken(value.kind, value.text.rpartition("/")[2], value.column)
    return FilterToken(name.kind, _FIELDS.get(field, name.text), name.column), value
