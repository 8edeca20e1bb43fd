"""Routes of the v1 jobs API."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, JsonBody, JsonOnly

router = APIRouter(prefix="/v1/projects/{project}", dependencies=[JsonOnly])


@router.post("/jobs")
def create(
    project: str,
    body: JsonBody,
    cases: Cases,
    caller: AuthenticatedCaller,
    validate_only: Annotated[bool, Query(alias="validateOnly")] = False,
) -> dict[str, Any]:
    if not validate_only:
        cases.health.admit()
    return cases.jobs.create(caller, project, body, validate_only)


@router.get("/jobs")
def list_jobs(
    project: str,
    cases: Cases,
    filter_text: Annotated[str, Query(alias="filter")] = "",
    page_size: Annotated[int | None, Query(alias="pageSize")] = None,
    page_token: Annotated[str, Query(alias="pageToken")] = "",
) -> dict[str, Any]:
    return cases.jobs.list(project, filter_text, page_size, page_token)


@router.get("/jobs/{job_id}")
def get(project: str, job_id: str, cases: Cases) -> dict[str, Any]:
    return cases.jobs.get(project, job_id)


@router.patch("/jobs/{job_id}")
def patch(
    project: str,
    job_id: str,
    body: JsonBody,
    cases: Cases,
    caller: AuthenticatedCaller,
    update_mask: Annotated[str, Query(alias="updateMask")] = "",
) -> dict[str, Any]:
    return cases.jobs.patch(caller, project, job_id, body, update_mask)


@router.post("/jobs/{job_id}:cancel")
def cancel(project: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> dict[str, Any]:
    """The body is ignored: `{}`, empty or `{"name": ...}`."""
    return cases.jobs.cancel(caller, project, job_id)
