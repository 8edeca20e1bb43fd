"""Routes beyond the v1 API: status, job details, configs, metrics and usage. Logs are in `api.logs`."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_protocol.config.views import ConfigCheck, ConfigCheckRequest, JobConfig, SuggestedId
from trainyard_protocol.health import CheckStatus, Finding, ServerHealth
from trainyard_protocol.usage import UsageView
from trainyard_protocol.views import (
    ActiveJobsView,
    Explanation,
    JobDetail,
    Me,
    QueueExplanationView,
    QuotasView,
    ServerStatus,
    SignInCode,
)
from trainyard_server.api.csrf import bearer
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, JsonBody, UseCases, parse_request
from trainyard_server.services.job_search import JobSearchRequest
from trainyard_server.services.metrics import DEFAULT_POINTS, MetricsQuery, csv_blocks
from trainyard_server.services.usage import DEFAULT_POINTS as USAGE_POINTS

router = APIRouter(prefix="/trainyard/v1")


@router.get("/me")
def me(caller: AuthenticatedCaller) -> Me:
    """The authenticated caller."""
    return Me(role=caller.role.value, name=caller.name)


@router.get("/status")
def status(cases: Cases) -> ServerStatus:
    return cases.job_details.status()


@router.get("/health")
async def health(cases: Cases, deep: bool = False) -> ServerHealth:
    """The checks of `/healthz` with more details; with `deep` also the findings of the doctor."""
    return await _server_health(cases, cases.diagnosis.findings if deep else tuple)


@router.post("/health:mend")
async def repair(cases: Cases) -> ServerHealth:
    """Repair the findings that can be repaired safely; the answer has the results."""
    return await _server_health(cases, cases.diagnosis.repair)


@router.post("/quotas:reload")
def reload_quotas(cases: Cases) -> QuotasView:
    """Read this server's quota file again. A file with a mistake is refused, and the quotas stay as they were."""
    return cases.cluster.reload_quotas()


@router.post("/sign-in-codes")
def sign_in_code(request: Request, cases: Cases) -> SignInCode:
    """A sign-in code for the owner of the bearer token. Sessions cannot create codes."""
    return cases.sign_in.code(bearer(request))


@router.get("/jobs")
def find_jobs(cases: Cases, q: str = "") -> dict[str, list[dict[str, str]]]:
    """The newest jobs of all projects with a text in their name."""
    matches = cases.job_search.find(JobSearchRequest(text=q)).jobs
    return {"jobs": [{"project": job.project, "job_id": job.job_id, "state": job.state} for job in matches]}


@router.get("/jobs:active")
def active_jobs(cases: Cases) -> ActiveJobsView:
    """The jobs of all projects that have not ended, with what each of them does."""
    return cases.cluster.active()


@router.get("/projects/{project}/jobs/{job_id}")
def detail(project: str, job_id: str, cases: Cases) -> JobDetail:
    return cases.job_details.detail(project, job_id)


@router.delete("/projects/{project}/jobs/{job_id}")
def delete_job(project: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> dict[str, str]:
    """Delete a job that has ended: its record, its log and its usage."""
    cases.jobs.delete(caller, project, job_id)
    return {}


@router.get("/projects/{project}/jobs/{job_id}/why")
def why(project: str, job_id: str, cases: Cases) -> QueueExplanationView:
    return cases.queue_explanation.explain(project, job_id)


@router.get("/projects/{project}/jobs/{job_id}/usage")
def usage(
    project: str,
    job_id: str,
    cases: Cases,
    run: Annotated[int | None, Query()] = None,
    points: int = USAGE_POINTS,
) -> UsageView:
    return cases.usage.view(project, job_id, run, points)


@router.get("/projects/{project}/jobs/{job_id}/explain")
def explain(
    project: str,
    job_id: str,
    cases: Cases,
    task: str = "",
    run: Annotated[int | None, Query()] = None,
) -> Explanation:
    return cases.job_details.explain(project, job_id, task, run)


@router.get("/projects/{project}/jobs/{job_id}/config")
def config(project: str, job_id: str, cases: Cases) -> JobConfig:
    """The config as submitted and as resolved, and the command that submits it again."""
    return cases.configs.config(project, job_id)


@router.post("/projects/{project}/configs:check")
def check_config(project: str, body: JsonBody, cases: Cases, caller: AuthenticatedCaller) -> ConfigCheck:
    """Validate the text of a config: each problem with its line and column. Creates nothing."""
    return cases.configs.check(caller, project, parse_request(ConfigCheckRequest, body))


@router.get("/projects/{project}/jobs:suggest")
def suggest(project: str, like: str, cases: Cases) -> SuggestedId:
    """A job id that is not used in the project."""
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
    """A `MetricsView`: each curve between two steps (inclusive), reduced to at most `points` points that keep its
    peaks."""
    query = MetricsQuery(name, task, from_step, to_step, points, after)
    view = cases.metrics.view(project, job_id, query)
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


async def _server_health(cases: UseCases, find: Callable[[], tuple[Finding, ...]]) -> ServerHealth:
    health = await cases.health.check()
    database_ok = health.checks["database"].status is not CheckStatus.DOWN
    return ServerHealth(
        status=health.status,
        checks=health.checks,
        version=trainyard_protocol.__version__,
        time=cases.backend.clock(),
        live_runs=await run_in_threadpool(cases.diagnosis.live_runs) if database_ok else None,
        findings=await run_in_threadpool(find) if database_ok else (),
    )
