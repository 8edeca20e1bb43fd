"""Routes of jobs beyond the v1 API: lists with results, details, trials."""

from typing import Annotated

from fastapi import Query, Response

from trainyard_protocol.answers.cluster import ActiveJobsView
from trainyard_protocol.answers.jobs import Explanation, JobDetail, JobsPage
from trainyard_protocol.answers.tuning import StudyCharts, StudyView
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.json_answer import JsonAnswer, with_warnings
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.views.job_search import JobSearchRequest
from trainyard_server.services.views.studies import Ranking

router = Router(prefix="/trainyard/v1")


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
    jobs = cases.job_lists.page(project, filter_text, page_size, page_token, with_results=True, note=notes.append)
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
