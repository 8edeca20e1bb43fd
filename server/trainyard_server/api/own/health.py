"""Routes of the service's health: open to all, and with details."""

from fastapi import Response
from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_protocol.errors import PermissionDenied
from trainyard_protocol.views.health import CheckStatus, Health, ServerHealth
from trainyard_protocol.views.operating.debugging import DebugState
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router()


@router.get(
    "/healthz",
    Access.NOBODY,
    "whether the service works",
    response_model_exclude_none=True,
    responses={503: {"model": Health, "description": "Jobs are not accepted or do not run."}},
)
async def healthz(response: Response, cases: Cases) -> Health:
    """Open to all: 200 while jobs are accepted and run, else 503."""
    health = await cases.health.check()
    response.headers["Cache-Control"] = "no-store"
    if health.status is CheckStatus.DOWN:
        response.status_code = 503
    return health


@router.get("/trainyard/v1/debug", Access.OPERATOR, "versions, settings without secrets, and the last lines of the log")
def debug(cases: Cases) -> DebugState:
    """The state of the process that answers, for a debug bundle."""
    return cases.debugging.state()


@router.get(
    "/trainyard/v1/health",
    Access.PERSON,
    "details of `/healthz`; with `deep=true`, for roles in all projects, the doctor's findings",
)
async def health(cases: Cases, caller: AuthenticatedCaller, deep: bool = False) -> ServerHealth:
    """The checks of `/healthz` with more details; with `deep` also the findings of the doctor, which name jobs of all
    projects."""
    if deep and caller.visible is not None:
        raise PermissionDenied(f"You are {caller}. The doctor's findings take a role in all projects.")
    health = await cases.health.check()
    database_ok = health.checks["database"].status is not CheckStatus.DOWN
    is_damaged = cases.backend.store.damage is not None  # the doctor says how much, as far as it can be read
    return ServerHealth(
        status=health.status,
        checks=health.checks,
        version=trainyard_protocol.__version__,
        time=cases.backend.clock(),
        live_runs=await run_in_threadpool(cases.diagnosis.live_runs)
        if database_ok and caller.visible is None
        else None,
        findings=await run_in_threadpool(cases.diagnosis.findings) if deep and (database_ok or is_damaged) else (),
    )
