"""Metrics page of a job. The server draws the first picture; metrics.js reads the curves from the API when
`curves_version` changes."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.result_chart import first_charts
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.storage.events.notifier import log_topic

router = Router()

LINE = '{"event": "progress", "step": 120, "steps": 5000, "loss": 0.31, "accuracy": 0.9}'
PYTHON = 'print(json.dumps({"event": "progress", "step": step, "steps": steps, "loss": float(loss)}), flush=True)'
"""Example for programs that report no metrics: the line, and Python that prints it."""


def metrics(request: Request, cases: Cases, project: str, job_id: str) -> View:
    def more(_detail: JobDetail) -> Mapping[str, Any]:
        version, measured = cases.metrics.version(project, job_id)
        return {
            "curves_version": version,
            "first_charts": lambda: first_charts(cases.metrics.results(project, job_id)),
            "line": LINE,
            "measured": measured,
            "python": PYTHON,
        }

    return job_view(
        request, cases, project, job_id, tab="/metrics", template="job/metrics.html", more=more, topics=(log_topic,)
    )


add_page(router, f"{JOB}/metrics", Access.VIEWER, "its curves", metrics)
