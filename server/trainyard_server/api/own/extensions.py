"""Routes beyond the v1 API: status, job details, configs, metrics and usage. Logs are in `api.logs`."""

from itertools import chain
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from trainyard_protocol.views.tuning import StudyCharts, StudyView
from trainyard_protocol.views.usage import UsageView
from trainyard_protocol.views.views import (
    ActiveJobsView,
    Explanation,
    JobDetail,
    JobsPage,
    Me,
    MetricsView,
    QuotasView,
    ServerStatus,
    SignInCode,
)
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, within
from trainyard_server.api.json_answer import JsonAnswer, with_warnings
from trainyard_server.api.middleware.csrf import bearer
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access
from trainyard_server.domain.metrics.series import LEAST
from trainyard_server.services.measurements.csv_text import csv_blocks
from trainyard_server.services.measurements.metrics import DEFAULT_POINTS, HEADER, MOST_POINTS, MetricsQuery
from trainyard_server.services.measurements.usage import DEFAULT_POINTS as USAGE_POINTS
from trainyard_server.services.measurements.usage import LEAST_POINTS
from trainyard_server.services.measurements.usage import MOST_POINTS as MOST_USAGE_POINTS
from trainyard_server.services.views.job_search import JobSearchRequest
from trainyard_server.services.views.studies import Ranking

router = Router(prefix="/trainyard/v1")


class CsvStream(StreamingResponse):
    media_type = "text/csv; charset=utf-8"


@router.get("/me", Access.PERSON, "the caller's name and roles")
def me(caller: AuthenticatedCaller) -> Me:
    """The authenticated caller."""
    roles = {project: role.value for project, role in caller.grants.items()}
    return Me(role=str(caller.role or ""), name=caller.name, projects=roles)


@router.get("/status", Access.PERSON, "agents, and how many jobs are in each state")
def status(cases: Cases, caller: AuthenticatedCaller) -> ServerStatus:
    return cases.job_details.status(caller.visible)


@router.post("/quotas:reload", Access.OPERATOR, "read the quota file again", "quotas.reload")
def reload_quotas(cases: Cases) -> QuotasView:
    """Read this server's quota file again. A file with a mistake is refused, and the quotas stay as they were."""
    return cases.cluster.reload_quotas()


@router.post(
    "/sign-in-codes",
    Access.PERSON,
    "a sign-in link for your own browser; needs a token, not a session",
    "sign-in-codes.create",
)
def sign_in_code(request: Request, cases: Cases) -> SignInCode:
    """A sign-in code for the owner of the bearer token. Sessions cannot create codes."""
    return cases.sign_in.code(bearer(request))


@router.get("/jobs", Access.PERSON, "jobs whose name contains a text")
def find_jobs(cases: Cases, caller: AuthenticatedCaller, q: str = "") -> dict[str, list[dict[str, str]]]:
    """The newest jobs that the caller may see with a text in their name."""
    matches = cases.job_search.find(caller.visible, JobSearchRequest(text=q)).jobs
    return {"jobs": [{"project": job.project, "job_id": job.job_id, "state": job.state} for job in matches]}


@router.get("/jobs:active", Access.PERSON, "the jobs that have not ended, and what they do")
def active_jobs(cases: Cases, caller: AuthenticatedCaller) -> ActiveJobsView:
    """The jobs that the caller may see and that have not ended, with what each of them does."""
    return cases.cluster.active(caller.visible)


@router.get(
    "/projects/{project}/jobs",
    Access.VIEWER,
    "jobs with their owners, durations, parameters and metrics",
    response_model=JobsPage,
)
def list_with_results(
    project: str,
    cases: Cases,
    filter_text: Annotated[str, Query(alias="filter")] = "",
    page_size: Annotated[int | None, Query(alias="pageSize")] = None,
    page_token: Annotated[str, Query(alias="pageToken")] = "",
) -> Response:
    """A list of the v1 API whose jobs also have owner, duration in seconds, parameters and metrics."""
    notes: list[str] = []
    jobs = cases.jobs.list(project, filter_text, page_size, page_token, with_results=True, note=notes.append)
    return with_warnings(JsonAnswer(jobs), notes)


@router.get("/projects/{project}/jobs/{job_id}", Access.VIEWER, "runs, replicas, events, verdict")
def detail(project: str, job_id: str, cases: Cases) -> JobDetail:
    return cases.job_details.detail(project, job_id)


@router.delete(
    "/projects/{project}/jobs/{job_id}",
    Access.SUBMITTER,
    "delete your own job, once it has ended; admins: any",
    "jobs.delete",
    own=True,
)
def delete_job(project: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> dict[str, str]:
    """Delete a job that has ended: its record, its log and its usage."""
    cases.jobs.delete(caller, project, job_id)
    return {}


@router.get("/projects/{project}/jobs/{job_id}/usage", Access.VIEWER, "CPU, memory and GPUs over time")
def usage(
    project: str,
    job_id: str,
    cases: Cases,
    run: Annotated[int | None, Query()] = None,
    points: Annotated[int, within(LEAST_POINTS, MOST_USAGE_POINTS)] = USAGE_POINTS,
) -> UsageView:
    return cases.usage.view(project, job_id, run, points)


@router.get("/projects/{project}/jobs/{job_id}/explain", Access.VIEWER, "a replica's environment and command")
def explain(
    project: str, job_id: str, cases: Cases, task: str = "", run: Annotated[int | None, Query()] = None
) -> Explanation:
    return cases.job_details.explain(project, job_id, task, run)


@router.get("/projects/{project}/jobs/{job_id}/trials", Access.VIEWER, "the trials of a study")
def trials(project: str, job_id: str, cases: Cases, metric: str = "", goal: str = "") -> StudyView:
    """The trials of a study, by number, with the values of its metric or of another one."""
    return cases.studies.view(project, job_id, Ranking(metric, goal))


@router.get("/projects/{project}/jobs/{job_id}/study", Access.VIEWER, "a study as its page shows it")
def study(project: str, job_id: str, cases: Cases) -> StudyCharts:
    """A study as its page shows it: at most 1,000 trials, and what each parameter explains."""
    return cases.studies.charts(project, job_id)


@router.get("/projects/{project}/jobs/{job_id}/metrics", Access.VIEWER, "its curves", response_model=MetricsView)
def metrics(
    project: str,
    job_id: str,
    cases: Cases,
    name: Annotated[tuple[str, ...], Query()] = (),
    task: str = "",
    from_step: int | None = None,
    to_step: int | None = None,
    points: Annotated[int, within(LEAST, MOST_POINTS)] = DEFAULT_POINTS,
    after: str = "",
) -> Response:
    """Each curve between two steps (inclusive), reduced to at most `points` points that keep its
    peaks."""
    query = MetricsQuery(name, task, from_step, to_step, points, after)
    view = cases.metrics.view(project, job_id, query)
    return Response(view.model_dump_json(), media_type="application/json", headers={"Cache-Control": "no-store"})


@router.get(
    "/projects/{project}/jobs/{job_id}/metrics.csv", Access.VIEWER, "the same as a table", response_class=CsvStream
)
def metrics_csv(project: str, job_id: str, cases: Cases) -> StreamingResponse:
    """Every point of every run: run, task, name, step, time, value."""
    rows = cases.metrics.rows(project, job_id)
    return CsvStream(
        csv_blocks(chain([HEADER], rows)),
        headers={"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{job_id}-metrics.csv"'},
    )
