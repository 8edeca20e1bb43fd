"""A job's curves. The page asks the API for them; what it is told here is when there is something new."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from trainyard_protocol.views import JobDetail
from trainyard_server.api.dependencies import Cases
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.storage.events.notifier import log_topic

router = APIRouter()

LINE = '{"event": "progress", "step": 120, "steps": 5000, "loss": 0.31, "accuracy": 0.9}'
PYTHON = (
    'print(json.dumps({"event": "progress", "step": step, "steps": steps, "loss": float(loss)}), flush=True)'
)
"""How to report metrics, for those who have not: the line, and what prints it."""


def metrics(request: Request, cases: Cases, project: str, job_id: str) -> View:
    def more(_detail: JobDetail) -> Mapping[str, Any]:
        version, measured = cases.metrics.standing(project, job_id)
        return {"curves_version": version, "measured": measured, "line": LINE, "python": PYTHON}

    return job_view(
        request,
        cases,
        project,
        job_id,
        tab="/metrics",
        template="job/metrics.html",
        more=more,
        topics=(log_topic,),
    )


add_page(router, f"{JOB}/metrics", metrics)
