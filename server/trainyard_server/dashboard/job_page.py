"""One job at a glance: how it stands and why, its runs and replicas, and how to go on."""

from fastapi import APIRouter, Request

from trainyard_server.dashboard.job_head import JOB, job_view
from trainyard_server.dashboard.pages import View, add_page
from trainyard_server.routes.common import Cases

router = APIRouter()


def overview(request: Request, cases: Cases, project: str, job_id: str) -> View:
    return job_view(request, cases, project, job_id, tab="", template="job/overview.html", with_events=True)


add_page(router, JOB, overview)
