"""Use cases of the jobs of Vertex AI: those of jobs, in the terms of one of its collections.

Lists have the jobs alone that came to the collection, since its jobs have what other jobs have not: a jobSpec, or a
studySpec.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import AlreadyExists, InvalidArgument, NotFound
from trainyard_protocol.job import custom_job_training as training
from trainyard_protocol.job.custom_jobs import VertexJob
from trainyard_server.capabilities.google.custom_jobs.training import STATES, name_of
from trainyard_server.capabilities.google.ml_v1.resources import GoogleResources
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.filters.filter_syntax import And, Expression, FilterToken, Term
from trainyard_server.services.jobs.job_lists import JobLists
from trainyard_server.services.jobs.jobs import Jobs
from trainyard_server.storage.db.queries import filters
from trainyard_server.storage.db.tables.audit_trail import current_trail

_FIELDS = {"name": "jobId", "error.message": "errorMessage"}
_EMPTY = "type.googleapis.com/google.protobuf.Empty"

Asked = TypeVar("Asked", bound=VertexJob)


class VertexJobs(ABC, Generic[Asked]):
    collection: ClassVar[str]
    """Its name in paths, and in the answer of a list."""
    key: ClassVar[str]
    """The key of the training input that keeps what was sent."""
    noun: ClassVar[str]

    def __init__(self, backend: Backend, jobs: Jobs, lists: JobLists, resources: GoogleResources) -> None:
        self._backend = backend
        self._jobs = jobs
        self._lists = lists
        self._resources = resources

    @staticmethod
    @abstractmethod
    def request(asked: Asked, job_id: str, location: str, /) -> dict[str, Any]:
        """The create request of the job. Raises InvalidArgument with fields of Vertex AI's job."""

    @staticmethod
    @abstractmethod
    def renamed(error: InvalidArgument, asked: Asked, /) -> InvalidArgument:
        """The error of the job with the fields of Vertex AI's job that it was made from."""

    @staticmethod
    @abstractmethod
    def answer(project: str, job: Mapping[str, Any]) -> dict[str, Any]:
        """Vertex AI's job, from the job."""

    def create(self, caller: Caller, project: str, location: str, asked: Asked) -> dict[str, Any]:
        """Create a job from one of Vertex AI. Raises what `Jobs.create` raises, with fields of Vertex AI's job;
        NotFound for a location that jobs may not name."""
        self._resources.check_location(project, location)
        job_id = training.new_job_id(asked.display_name, self._backend.clock(), secrets.token_hex(3))
        request = self.request(asked, job_id, location)
        _audit(job_id)
        try:
            return self.answer(project, self._jobs.create(caller, project, request))
        except AlreadyExists:  # an id of its own, not of the caller
            raise
        except InvalidArgument as error:
            raise self.renamed(error, asked) from error

    def get(self, project: str, location: str, job_id: str, site: str) -> dict[str, Any]:
        """A job of the collection. Raises NotFound, also for a job that did not come to it, or is in another
        location."""
        job = self._jobs.get(project, job_id, site)
        sent = job["trainingInput"]
        if self.key not in sent or sent["region"] != location:
            name = name_of(project, location, self.collection, job_id)
            raise NotFound(f"Field: name Error: The {self.noun} {name} was not found.")
        return self.answer(project, job)

    def list(
        self, project: str, location: str, filter_text: str = "", page_size: int | None = None, page_token: str = ""
    ) -> dict[str, Any]:
        """One page, the newest job first: `{"customJobs": [...], "nextPageToken": ...}`, `{}` for nothing."""
        self._resources.check_location(project, location)
        parse = partial(_expression, location, f"trainingInput.{self.key}.displayName")
        answer = self._lists.page(project, filter_text, page_size, page_token, parse=parse)
        page = [self.answer(project, job) for job in answer.pop("jobs", ())]
        return {**({self.collection: page} if page else {}), **answer}

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


def _expression(location: str, display_name: str, text: str) -> Expression:
    """A filter of a collection as one of jobs."""
    own = (Term(display_name, "=", "*"), Term("trainingInput.region", "=", location))
    asked = filters.parse(text, partial(_as_of_jobs, display_name))
    return And((*own, asked) if asked is not None else own)


def _as_of_jobs(display_name: str, name: FilterToken, value: FilterToken) -> tuple[FilterToken, FilterToken]:
    """`display_name = "a"` is `trainingInput.customJob.displayName = "a"`, `JOB_STATE_PENDING` is `PREPARING`."""
    field = to_camel(name.text) if "." not in name.text else name.text
    if field == "state":
        state = next((state for state, theirs in STATES.items() if theirs == value.text.upper()), None)
        return name, FilterToken(value.kind, state.value, value.column) if state is not None else value
    if field == "name":
        value = FilterToken(value.kind, value.text.rpartition("/")[2], value.column)
    field = display_name if field == "displayName" else _FIELDS.get(field, name.text)
    return FilterToken(name.kind, field, name.column), value
