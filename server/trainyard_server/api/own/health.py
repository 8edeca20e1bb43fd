"""Route of the service's health, open to all."""

from fastapi import Response

from trainyard_protocol.answers.health import CheckStatus, Health
from trainyard_server.api.dependencies import Cases
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
