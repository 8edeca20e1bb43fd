"""Packages on their way in."""

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import TooLarge
from trainyard_protocol.views import Staged
from trainyard_server.api.dependencies import Cases

router = APIRouter(prefix="/upload")


@router.post("/trainyard/v1/projects/{project}/packages/{filename}")
async def package(project: str, filename: str, request: Request, cases: Cases) -> Staged:  # noqa: ARG001
    """The body is the package. Sending the same one again changes nothing and gives the same URI."""
    limit = cases.backend.settings.upload_limit
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise TooLarge(f"{filename} has {announced} bytes; a package may have {limit}.")
    await run_in_threadpool(cases.health.admit)
    with await run_in_threadpool(cases.backend.staging.receive, filename) as upload:
        async for part in request.stream():
            await run_in_threadpool(upload.write, part)
        return await run_in_threadpool(upload.finish)
