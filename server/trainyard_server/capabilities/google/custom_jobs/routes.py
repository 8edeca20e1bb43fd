"""Routes of the custom jobs of Vertex AI's API. `/v1beta1` has the same: `google_calls` passes it on."""

from typing import Annotated

from fastapi import Query, Request

from trainyard_protocol.answers.custom_jobs import CustomJobAnswer, CustomJobPage, Deletion
from trainyard_protocol.job.custom_jobs import CustomJob
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, JsonOnly
from trainyard_server.api.json_answer import JsonAnswer
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.google.custom_jobs.custom_jobs import CustomJobs
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/v1/projects/{project}/locations/{location}", dependencies=[JsonOnly])


@router.post("/customJobs", Access.SUBMITTER, "submit a custom job", "jobs.create", response_model=CustomJobAnswer)
def create(project: str, location: str, body: CustomJob, cases: Cases, caller: AuthenticatedCaller) -> JsonAnswer:
    cases.health.admit()
    return JsonAnswer(cases.of(CustomJobs).create(caller, project, location, body))


@router.get("/customJobs", Access.VIEWER, "list the custom jobs", response_model=CustomJobPage)
def list_custom_jobs(
    project: str,
    location: str,
    cases: Cases,
    filter_text: Annotated[str, Query(alias="filter")] = "",
    page_size: Annotated[int | None, Query(alias="pageSize", json_schema_extra={"minimum": 0})] = None,
    page_token: Annotated[str, Query(alias="pageToken")] = "",
) -> JsonAnswer:
    return JsonAnswer(cases.of(CustomJobs).list(project, location, filter_text, page_size, page_token))


@router.get("/customJobs/{job_id}", Access.VIEWER, "get a custom job", response_model=CustomJobAnswer)
def get(request: Request, project: str, location: str, job_id: str, cases: Cases) -> JsonAnswer:
    return JsonAnswer(cases.of(CustomJobs).get(project, location, job_id, str(request.base_url)))


@router.post(
    "/customJobs/{job_id}:cancel",
    Access.SUBMITTER,
    "cancel your own job; admins: any",
    "jobs.cancel",
    own=True,
    response_model=dict[str, str],
)
def cancel(project: str, location: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> JsonAnswer:
    """The body is ignored: `{}`, empty or `{"name": ...}`."""
    return JsonAnswer(cases.of(CustomJobs).cancel(caller, project, location, job_id))


@router.delete(
    "/customJobs/{job_id}",
    Access.SUBMITTER,
    "delete your own job, once it has ended; admins: any",
    "jobs.delete",
    own=True,
    response_model=Deletion,
)
def delete(project: str, location: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> JsonAnswer:
    return JsonAnswer(cases.of(CustomJobs).delete(caller, project, location, job_id))
