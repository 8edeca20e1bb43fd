"""Route for package uploads."""

from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import TooLarge
from trainyard_protocol.views.views import Staged
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.jobs.jobs import check_project

router = Router(prefix="/upload")

_MAX_DIGITS = 18
_CHECKED = 1 << 22  # bytes from one look at the disk to the next


@router.post(
    "/trainyard/v1/projects/{project}/packages/{filename}",
    Access.SUBMITTER,
    "a package for a job",
    "packages.upload",
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
)
async def package(
    project: str, filename: str, request: Request, cases: Cases, job_id: Annotated[str, Query(alias="jobId")] = ""
) -> Staged:
    """Store the body as a package of the project. Idempotent: the same content gives the same URI.

    With `jobId`, the job that is submitted next, a taken id is refused before the body is read.
    """
    check_project(project)
    limit = cases.backend.settings.upload_limit
    length = request.headers.get("content-length", "")
    size = int(length[: _MAX_DIGITS + 1]) if length.isascii() and length.isdecimal() else 0
    if size > limit:
        raise TooLarge(f"{filename} has {length[:_MAX_DIGITS]} bytes; the limit for a package is {limit}.")
    await run_in_threadpool(cases.health.admit, size)
    if job_id:
        await run_in_threadpool(cases.jobs.check_free, project, job_id)
    with await run_in_threadpool(cases.backend.uploads.receive, project, filename) as upload:
        async for part in request.stream():
            await run_in_threadpool(upload.write, part)
            if upload.unchecked >= _CHECKED:  # others fill the disk too
                upload.unchecked = 0
                await run_in_threadpool(cases.health.admit)
        return await run_in_threadpool(upload.finish)
