"""Routes for uploads: packages, and programs as a browser has them."""

from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.answers.configs import PackedProgram
from trainyard_protocol.answers.files import Staged
from trainyard_protocol.errors import TooLarge
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.jobs.known_jobs import check_project
from trainyard_server.services.jobs.program_packing import PROGRAM_TAR
from trainyard_server.storage.uploads import ReceivedFile
from trainyard_server.use_cases import UseCases

router = Router(prefix="/upload")

_MAX_DIGITS = 18
_CHECKED = 1 << 22  # bytes from one look at the disk to the next


@router.post(
    "/trainyard/v1/projects/{project}/packages/{filename}",
    Access.SUBMITTER,
    "a package for a job",
    "packages.upload",
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
    is_upload=True,
)
async def package(
    project: str, filename: str, request: Request, cases: Cases, job_id: Annotated[str, Query(alias="jobId")] = ""
) -> Staged:
    """Store the body as a package of the project. Idempotent: the same content gives the same URI.

    With `jobId`, the job that is submitted next, a taken id is refused before the body is read.
    """
    await _admit(project, filename, request, cases)
    if job_id:
        await run_in_threadpool(cases.jobs.check_free, project, job_id)
    with await run_in_threadpool(cases.backend.uploads.receive, project, filename) as upload:
        await _receive(upload, request, cases)
        return await run_in_threadpool(upload.finish)


@router.post(
    "/trainyard/v1/projects/{project}/programs",
    Access.SUBMITTER,
    "a program's files, packed for a job",
    "programs.upload",
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
    is_upload=True,
)
async def program(project: str, request: Request, cases: Cases, entry: str = "") -> PackedProgram:
    """Pack the files of the body, an uncompressed tar of plain files and directories, as a package of the project.

    `entry` is the file or module that starts the program; without it, the one that obviously does. A program that
    could not run is answered with its `problem`.
    """
    await _admit(project, PROGRAM_TAR, request, cases)
    uploads = cases.backend.uploads
    with uploads.scratch() as scratch:
        with await run_in_threadpool(uploads.body, scratch, PROGRAM_TAR) as body:
            await _receive(body, request, cases)
        await run_in_threadpool(cases.health.admit, 2 * body.size)  # its files, and the package
        return await run_in_threadpool(cases.program_packing.pack, project, scratch, entry)


async def _admit(project: str, filename: str, request: Request, cases: UseCases) -> None:
    """Refuse a body that is larger than allowed, or than the disk has room for."""
    check_project(project)
    limit = cases.backend.settings.upload_limit
    length = request.headers.get("content-length", "")
    size = int(length[: _MAX_DIGITS + 1]) if length.isascii() and length.isdecimal() else 0
    if size > limit:
        raise TooLarge(f"{filename} has {length[:_MAX_DIGITS]} bytes; the limit for a package is {limit}.")
    await run_in_threadpool(cases.health.admit, size)


async def _receive(file: ReceivedFile, request: Request, cases: UseCases) -> None:
    async for part in request.stream():
        await run_in_threadpool(file.write, part)
        if file.unchecked >= _CHECKED:  # others fill the disk too
            file.unchecked = 0
            await run_in_threadpool(cases.health.admit)
