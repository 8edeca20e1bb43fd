"""The log of a job: the frame of the page. Its lines come over the API, to logs.js."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_protocol.views import JobDetail
from trainyard_server.api.dependencies import Cases
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.views import View, add_page

router = APIRouter()


def logs_view(request: Request, cases: Cases, project: str, job_id: str) -> View:
    loaded = rfc3339(
        cases.backend.clock()
    )  # so that the page knows how far the reader's clock is from this one

    def more(detail: JobDetail) -> Mapping[str, Any]:
        runs = [
            {"number": run.number, "state": run.state.value, "tasks": [r.task for r in run.replicas]}
            for run in detail.runs
        ]
        over = detail.state in FINAL_JOB_STATES
        return {"loaded": loaded, "over": over, "runs": json.dumps(runs)}

    return job_view(request, cases, project, job_id, tab="/logs", template="job/logs.html", more=more)


add_page(router, f"{JOB}/logs", logs_view)
