"""Routes of a job's files: directory listings and downloads."""

import logging
from typing import Annotated
from urllib.parse import quote

from fastapi import Query
from fastapi.responses import Response, StreamingResponse
from starlette.types import Send

from trainyard_protocol.answers.files import FileEntry, FileListing
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access
from trainyard_server.domain.step_images import image_type

router = Router(prefix="/trainyard/v1/projects/{project}/jobs/{job_id}/files")

_log = logging.getLogger(__name__)


class Download(StreamingResponse):
    media_type = "application/octet-stream"

    async def stream_response(self, send: Send) -> None:
        """Closes the connection if the file cannot be read to its end, so that clients notice the missing part."""
        try:
            await super().stream_response(send)
        except OSError as error:
            _log.warning("A download ended early: %s", error)


@router.get("", Access.VIEWER, "a directory of its job-dir")
def listing(
    project: str, job_id: str, cases: Cases, path: str = "", page_token: Annotated[str, Query(alias="pageToken")] = ""
) -> FileListing:
    """A page of a directory below the job-dir."""
    return cases.job_files.listing(project, job_id, path, page_token)


@router.get("/content", Access.VIEWER, "a file of its job-dir", response_class=Download)
def download(project: str, job_id: str, cases: Cases, path: str) -> Response:
    """A file as a download. Browsers never display it, except for an image as part of a page."""
    content = cases.job_files.content(project, job_id, path)
    headers = {"Content-Disposition": disposition(content.name), "Content-Length": str(content.size)}
    return Download(content.blocks, headers=headers, media_type=image_type(content.name) or None)


@router.get("/entry", Access.VIEWER, "what is at a path of its job-dir")
def entry(project: str, job_id: str, cases: Cases, path: str) -> FileEntry:
    """The file or directory at a path below the job-dir."""
    return cases.job_files.entry(project, job_id, path)


@router.get("/archive", Access.VIEWER, "a directory of its job-dir as a zip archive", response_class=Download)
def archive(project: str, job_id: str, cases: Cases, path: str = "") -> Response:
    """A directory as a zip archive, of at most 10,000 files and directories and 100 GB. Links to directories are not
    followed; `LEFT-OUT.txt` in it lists what it does not have."""
    name, blocks = cases.job_files.archive(project, job_id, path)
    return Download(blocks, headers={"Content-Disposition": disposition(name)}, media_type="application/zip")


def disposition(name: str) -> str:
    """The Content-Disposition header of a download with any file name (RFC 6266)."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%;' else "_" for c in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
