"""The files of a job: what is there, and downloads."""

import logging
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse
from starlette.types import Send

from trainyard_protocol.file_views import FileListing
from trainyard_server.api.dependencies import Cases

router = APIRouter(prefix="/trainyard/v1/projects/{project}/jobs/{job_id}/files")

_log = logging.getLogger(__name__)


@router.get("")
def listing(
    project: str,
    job_id: str,
    cases: Cases,
    path: str = "",
    page_token: Annotated[str, Query(alias="pageToken")] = "",
) -> FileListing:
    """One page of a directory below the job-dir."""
    return cases.files.listing(project, job_id, path, page_token)


@router.get("/content")
def content(project: str, job_id: str, cases: Cases, path: str) -> Response:
    """A file, to be kept: never to be shown in the browser, whatever is in it."""
    found = cases.files.content(project, job_id, path)
    headers = {"Content-Disposition": disposition(found.name), "Content-Length": str(found.size)}
    return _Download(found.blocks, media_type="application/octet-stream", headers=headers)


def disposition(name: str) -> str:
    """As a file of that name, which may be anything: in a form that each browser understands (RFC 6266)."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%;' else "_" for c in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


class _Download(StreamingResponse):
    async def stream_response(self, send: Send) -> None:
        """Ends without its end where the file cannot be read to it, so that nobody takes the part for the whole."""
        try:
            await super().stream_response(send)
        except OSError as error:
            _log.warning("A download was cut: %s", error)
