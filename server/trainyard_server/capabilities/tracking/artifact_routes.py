"""Routes of MLflow's artifacts: people read those of runs through the server, programs write them to their job-dir."""

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.middleware.csrf import bearer
from trainyard_server.api.own.files import Download, disposition
from trainyard_server.capabilities.tracking.artifacts import TrackedArtifacts
from trainyard_server.capabilities.tracking.messages import ArtifactList
from trainyard_server.capabilities.tracking.router import MlflowRouter

_ARTIFACTS = "/mlflow-artifacts/artifacts"
_PATH = f"{_ARTIFACTS}/{{path:path}}"
_ANY_BODY = {"requestBody": {"required": False, "content": {"application/octet-stream": {}}}}

router = MlflowRouter()

Json = dict[str, Any]


@router.call("GET", "/mlflow/artifacts/list", "artifacts of a run", ArtifactList)
def of_run(
    request: Request, cases: Cases, caller: AuthenticatedCaller, run_id: str = "", run_uuid: str = "", path: str = ""
) -> Json:
    """A directory of a run's artifacts, at most 10,000 files."""
    return cases.of(TrackedArtifacts).of_run(caller, bearer(request), run_id or run_uuid, path)


@router.call("GET", _ARTIFACTS, "artifacts of a run, by its address", ArtifactList)
def listing(cases: Cases, caller: AuthenticatedCaller, path: str = "") -> Json:
    """A directory of a run's artifacts: `path` begins with the run's id."""
    return cases.of(TrackedArtifacts).listing(caller, path)


@router.call("GET", _PATH, "an artifact", None, response_class=Download)
def download(path: str, cases: Cases, caller: AuthenticatedCaller) -> Response:
    """A file of a run's artifacts: the path begins with the run's id."""
    content = cases.of(TrackedArtifacts).content(caller, path)
    headers = {"Content-Disposition": disposition(content.name), "Content-Length": str(content.size)}
    return Download(content.blocks, headers=headers)


@router.call(
    "PUT", _PATH, "an artifact of a job without a job-dir, which is not kept", openapi_extra=_ANY_BODY, is_upload=True
)
async def put(path: str, request: Request, cases: Cases, caller: AuthenticatedCaller) -> Json:
    """Answers a program, whose job's log says that artifacts need a job-dir; people are refused."""
    await run_in_threadpool(cases.of(TrackedArtifacts).refuse, caller, bearer(request), path)
    async for _ in request.stream():  # a client that is cut off in the middle reports a broken connection
        continue
    return {}


@router.call("DELETE", _PATH, "an artifact of a job without a job-dir: there is none")
def delete(path: str, request: Request, cases: Cases, caller: AuthenticatedCaller) -> Json:
    cases.of(TrackedArtifacts).refuse(caller, bearer(request), path)
    return {}
