"""Log page of a job: its frame. logs.js reads the lines from the API."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.fields import rfc3339
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access

router = Router()


def logs_view(request: Request, cases: Cases, project: str, job_id: str) -> View:
    loaded = rfc3339(cases.backend.clock())  # the script compares the browser's clock with it

    def more(detail: JobDetail) -> Mapping[str, Any]:
        every = [run for gang in detail.runs for run in (gang, *gang.restarts)]
        runs = [
            {"number": run.number, "state": run.state.value, "tasks": [r.task for r in run.replicas]}
            for run in sorted(every, key=lambda run: run.number)
        ]
        return {"loaded": loaded, "runs": json.dumps(runs)}

    return job_view(request, cases, project, job_id, tab="/logs", template="job/logs.html", more=more)


add_page(router, f"{JOB}/logs", Access.VIEWER, "its log", logs_view)
