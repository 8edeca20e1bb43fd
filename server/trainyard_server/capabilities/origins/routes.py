"""Routes of a job's origin and of its packages, with which it can be run again by hand."""

from fastapi import Response
from fastapi.responses import FileResponse

from trainyard_protocol.answers.origin import MAX_BODY, JobOrigin, OriginView
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.origins.origins import Origins
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/trainyard/v1/projects/{project}/jobs/{job_id}")


class PlainText(Response):
    media_type = "text/plain; charset=utf-8"


class JobPackage(FileResponse):
    media_type = "application/octet-stream"


@router.put(
    "/origin",
    Access.SUBMITTER,
    "record where your own job comes from, once",
    "jobs.set-origin",
    own=True,
    body_limit=MAX_BODY,
)
def set_origin(project: str, job_id: str, body: JobOrigin, cases: Cases, caller: AuthenticatedCaller) -> dict[str, str]:
    """Record the origin of a job: commit, changes, packages and versions. It does not change afterwards."""
    cases.of(Origins).set(caller, project, job_id, body)
    return {}


@router.get("/origin", Access.VIEWER, "where it was submitted from, with the diff")
def get_origin(project: str, job_id: str, cases: Cases) -> OriginView:
    return cases.of(Origins).get(project, job_id)


@router.get("/origin/diff", Access.VIEWER, "the diff of its origin, as text", response_class=PlainText)
def diff(project: str, job_id: str, cases: Cases) -> Response:
    """The changes that the working tree had, as `git diff` prints them."""
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'inline; filename="{job_id}.diff"'}
    return PlainText(cases.of(Origins).diff(project, job_id), headers=headers)


@router.get("/packages/{sha256}/{filename}", Access.VIEWER, "a package of it", response_class=JobPackage)
def package(project: str, job_id: str, sha256: str, filename: str, cases: Cases) -> Response:
    """A package that was uploaded for the job."""
    path = cases.packages.of_job(project, job_id, sha256, filename)
    return JobPackage(path, media_type=JobPackage.media_type, filename=filename)
