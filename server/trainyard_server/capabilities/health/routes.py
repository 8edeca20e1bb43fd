"""Routes of the doctor's findings, and of a debug bundle."""

from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_protocol.answers.health import CheckStatus, ServerHealth
from trainyard_protocol.answers.operating.debugging import DebugState
from trainyard_protocol.errors import PermissionDenied
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.health.debugging import Debugging
from trainyard_server.capabilities.health.diagnosis import Diagnosis
from trainyard_server.domain.access.route_access import Access

router = Router()


@router.get("/trainyard/v1/debug", Access.OPERATOR, "versions, settings without secrets, and the last lines of the log")
def debug(cases: Cases) -> DebugState:
    """The state of the process that answers, for a debug bundle."""
    return cases.of(Debugging).state()


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
        live_runs=await run_in_threadpool(cases.of(Diagnosis).live_runs)
        if database_ok and caller.visible is None
        else None,
        findings=await run_in_threadpool(cases.of(Diagnosis).findings) if deep and (database_ok or is_damaged) else (),
    )
