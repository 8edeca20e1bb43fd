"""What the service has beyond the v1 API: status, details and explanations. Logs: `routes.logs`."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_protocol.config_views import ConfigCheck, ConfigCheckRequest, JobConfig, SuggestedId
from trainyard_protocol.health import CheckStatus, Finding, ServerHealth
from trainyard_protocol.usage import UsageView
from trainyard_protocol.views import (
    Explanation,
    JobDetail,
    JobFound,
    JobsFound,
    Me,
    ServerStatus,
    SignInCode,
    WhyView,
)
from trainyard_server.api.csrf import bearer
from trainyard_server.api.dependencies import Asker, Cases, RawBody, UseCases, parse_wire
from trainyard_server.services.job_search import Question
from trainyard_server.services.metrics import DEFAULT_POINTS, Wanted, csv_blocks
from trainyard_server.services.usage import DEFAULT_POINTS as USAGE_POINTS

router = APIRouter(prefix="/trainyard/v1")


@router.get("/me")
def me(asker: Asker) -> Me:
    """Who calls, as the server sees it."""
    return Me(role=asker.role.value, name=asker.name)


@router.get("/status")
def status(cases: Cases) -> ServerStatus:
    return cases.explaining.status()


@router.get("/health")
async def health(cases: Cases, deep: bool = False) -> ServerHealth:
    """What `/healthz` says, and more for those who may know it; with `deep` everything is looked at."""
    return await _server_health(cases, cases.diagnosis.findings if deep else tuple)


@router.post("/health:mend")
async def mend(cases: Cases) -> ServerHealth:
    """Does what of the findings can be mended here and is safe; the answer has what was done."""
    return await _server_health(cases, cases.diagnosis.mend)


@router.post("/sign-in-codes")
def sign_in_code(request: Request, cases: Cases) -> SignInCode:
    """For the browser of whoever has the token that comes with the call; a session cannot make further ones."""
    return cases.signing_in.code(bearer(request))


@router.get("/jobs")
def find_jobs(cases: Cases, q: str = "") -> JobsFound:
    """The newest jobs of all projects with a text in their name."""
    found = [line.job for line in cases.listings.find(Question(text=q)).jobs]
    return JobsFound(
        jobs=tuple(JobFound(project=job.project, job_id=job.job_id, state=job.state) for job in found)
    )


@router.get("/projects/{project}/jobs/{job_id}")
def detail(project: str, job_id: str, cases: Cases) -> JobDetail:
    return cases.explaining.detail(project, job_id)


@router.get("/projects/{project}/jobs/{job_id}/why")
def why(project: str, job_id: str, cases: Cases) -> WhyView:
    return cases.why.why(project, job_id)


@router.get("/projects/{project}/jobs/{job_id}/usage")
def usage(
    project: str,
    job_id: str,
    cases: Cases,
    run: Annotated[int | None, Query()] = None,
    points: int = USAGE_POINTS,
) -> UsageView:
    return cases.measuring.view(project, job_id, run, points)


@router.get("/projects/{project}/jobs/{job_id}/explain")
def explain(
    project: str,
    job_id: str,
    cases: Cases,
    task: str = "",
    run: Annotated[int | None, Query()] = None,
) -> Explanation:
    return cases.explaining.explain(project, job_id, task, run)


@router.get("/projects/{project}/jobs/{job_id}/config")
def config(project: str, job_id: str, cases: Cases) -> JobConfig:
    """As it was sent, as it was resolved, and what to type to have it once more."""
    return cases.configs.config(project, job_id)


@router.post("/projects/{project}/configs:check")
def check_config(project: str, body: RawBody, cases: Cases, caller: Asker) -> ConfigCheck:
    """What submit would say of a config's text, each problem with its line and column. Nothing is created."""
    return cases.configs.check(caller, project, parse_wire(ConfigCheckRequest, body))


@router.get("/projects/{project}/jobs:suggest")
def suggest(project: str, like: str, cases: Cases) -> SuggestedId:
    """A job id that is free in the project."""
    return cases.configs.suggest(project, like)


@router.get("/projects/{project}/jobs/{job_id}/metrics", response_model=None)
def metrics(
    project: str,
    job_id: str,
    cases: Cases,
    name: Annotated[tuple[str, ...], Query()] = (),
    task: str = "",
    from_step: int | None = None,
    to_step: int | None = None,
    points: int = DEFAULT_POINTS,
    after: str = "",
) -> Response:
    """A `MetricsView`. Of each curve between two steps (both included) at most `points`, such that its peaks stay;
    ask for a part of it to see more there."""
    wanted = Wanted(name, task, from_step, to_step, points, after)
    view = cases.metrics.view(project, job_id, wanted)
    return Response(
        view.model_dump_json(), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


@router.get("/projects/{project}/jobs/{job_id}/metrics.csv", response_model=None)
def metrics_csv(project: str, job_id: str, cases: Cases) -> StreamingResponse:
    """Every point of every run: run, task, name, step, time, value."""
    rows = cases.metrics.rows(project, job_id)
    return StreamingResponse(
        csv_blocks(rows),
        media_type="text/csv; charset=utf-8",
        headers={
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="{job_id}-metrics.csv"',
        },
    )


async def _server_health(cases: UseCases, look: Callable[[], tuple[Finding, ...]]) -> ServerHealth:
    now = await cases.health.look()
    answers = now.checks["database"].status is not CheckStatus.DOWN
    return ServerHealth(
        status=now.status,
        checks=now.checks,
        version=trainyard_protocol.__version__,
        time=cases.backend.clock(),
        live_runs=await run_in_threadpool(cases.diagnosis.live_runs) if answers else None,
        findings=await run_in_threadpool(look) if answers else (),
    )
