"""Routes of the v1 jobs API."""

from typing import Annotated, Any

from fastapi import Query, Request

from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, JsonBody, JsonOnly
from trainyard_server.api.json_answer import JsonAnswer, with_warnings
from trainyard_server.api.middleware.audit import Audited
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/v1/projects/{project}", dependencies=[JsonOnly])


@router.post(
    "/jobs", Access.SUBMITTER, "submit a job, which is then the caller's", "jobs.create", response_model=dict[str, Any]
)
def create(
    project: str,
    body: JsonBody,
    cases: Cases,
    caller: AuthenticatedCaller,
    trail: Audited,
    validate_only: Annotated[bool, Query(alias="validateOnly")] = False,
) -> JsonAnswer:
    trail.is_change = not validate_only
    trail.subject = str(body.get("jobId", "")) if isinstance(body, dict) else ""
    if not validate_only:
        cases.health.admit()
    notes: list[str] = []
    answer = JsonAnswer(cases.jobs.create(caller, project, body, validate_only, notes.append))
    return with_warnings(answer, notes)


@router.get("/jobs", Access.VIEWER, "list the jobs", response_model=dict[str, Any])
def list_jobs(
    project: str,
    cases: Cases,
    filter_text: Annotated[str, Query(alias="filter")] = "",
    page_size: Annotated[int | None, Query(alias="pageSize", json_schema_extra={"minimum": 0})] = None,
    page_token: Annotated[str, Query(alias="pageToken")] = "",
) -> JsonAnswer:
    notes: list[str] = []
    answer = JsonAnswer(cases.job_lists.page(project, filter_text, page_size, page_token, note=notes.append))
    return with_warnings(answer, notes)


@router.get("/jobs/{job_id}", Access.VIEWER, "get a job", response_model=dict[str, Any])
def get(request: Request, project: str, job_id: str, cases: Cases) -> JsonAnswer:
    return JsonAnswer(cases.jobs.get(project, job_id, str(request.base_url)))


@router.patch(
    "/jobs/{job_id}",
    Access.SUBMITTER,
    "change the labels of your own job; admins: of any",
    "jobs.update",
    own=True,
    response_model=dict[str, Any],
)
def patch(
    project: str,
    job_id: str,
    body: JsonBody,
    cases: Cases,
    caller: AuthenticatedCaller,
    update_mask: Annotated[str, Query(alias="updateMask")] = "",
) -> JsonAnswer:
    return JsonAnswer(cases.jobs.patch(caller, project, job_id, body, update_mask))


@router.post(
    "/jobs/{job_id}:cancel",
    Access.SUBMITTER,
    "cancel your own job; admins: any",
    "jobs.cancel",
    own=True,
    response_model=dict[str, Any],
)
def cancel(project: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> JsonAnswer:
    """The body is ignored: `{}`, empty or `{"name": ...}`."""
    return JsonAnswer(cases.jobs.cancel(caller, project, job_id))
