"""Routes of staged packages: for the agents of runs, and by links for their replicas."""

from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import FileResponse

from trainyard_protocol.errors import PermissionDenied
from trainyard_protocol.wire.sync import PackageLinks
from trainyard_server.api.dependencies import CallingAgentKey, Cases
from trainyard_server.api.middleware.csrf import address_of
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router()


class PackageFile(FileResponse):
    media_type = "application/octet-stream"


@router.get(
    "/agent/v1/staging/{sha256}/{filename}", Access.AGENT, "packages of jobs", own=True, response_class=PackageFile
)
def for_agent(sha256: str, filename: str, cases: Cases, key: CallingAgentKey) -> Response:
    return _file(cases.packages.for_agent(sha256, filename, key), filename)


@router.get("/agent/v1/runs/{run_id}/packages", Access.AGENT, "links to them, for the replicas of a run", own=True)
def links(run_id: str, cases: Cases, key: CallingAgentKey) -> PackageLinks:
    return cases.packages.links(run_id, key)


@router.get(
    "/trainyard/v1/runs/{run_id}/packages/{sha256}/{filename}",
    Access.NOBODY,
    "a package, for a replica: by a link that is signed for its run",
    response_class=PackageFile,
)
def by_link(run_id: str, sha256: str, filename: str, request: Request, cases: Cases, signature: str = "") -> Response:
    """The package for a replica, which has no token."""
    try:
        path = cases.packages.by_link(run_id, sha256, filename, signature)
    except PermissionDenied as error:
        raise cases.guesses.wrong(address_of(request), error) from None
    return _file(path, filename)


def _file(path: Path, filename: str) -> Response:
    return PackageFile(path, media_type=PackageFile.media_type, filename=filename)
