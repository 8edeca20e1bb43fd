"""Config page of a job: as submitted, as resolved, the environment of each replica, and commands to paste."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from trainyard_protocol.answers.configs import JobConfig
from trainyard_protocol.answers.jobs import Explanation, JobDetail, RunView
from trainyard_protocol.errors import FailedPrecondition, NotFound
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.config_editor.configs import Configs
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.use_cases import UseCases

router = Router()


def config_view(
    request: Request, cases: Cases, project: str, job_id: str, run: int | None = None, task: str = ""
) -> View:
    configs: dict[str, JobConfig] = {}

    def config(etag: str) -> JobConfig:
        """Cached by etag: only labels change, so it is not read again at each step of the job."""
        if etag not in configs:
            configs.clear()
            configs[etag] = cases.of(Configs).config(project, job_id)
        return configs[etag]

    def more(detail: JobDetail) -> Mapping[str, Any]:
        chosen = _run(detail, run)
        return {
            "config": config(detail.job["etag"]),
            "chosen": chosen,
            **_replica(cases, project, job_id, chosen, task),
        }

    return job_view(request, cases, project, job_id, tab="/config", template="config_editor/config.html", more=more)


def _run(detail: JobDetail, number: int | None) -> RunView | None:
    """The run with that number, else the last one, else None."""
    requested = next((run for run in detail.runs if run.number == number), None)
    return requested or (detail.runs[-1] if detail.runs else None)


def _replica(cases: UseCases, project: str, job_id: str, run: RunView | None, task: str) -> dict[str, Any]:
    """The environment and command of a replica, or why they are unknown."""
    explanation: Explanation | None = None
    unknown = ""
    try:
        if run is not None:
            names = [replica.task for replica in run.replicas]
            known_task = task if task in names else ""
            explanation = cases.job_details.explain(project, job_id, known_task, run.number)
        else:
            unknown = "No run has begun yet."
    except (FailedPrecondition, NotFound):
        unknown = "The replicas of this run have no addresses."
    tf_config = command = ""
    if explanation is not None:
        tf_config = json.dumps(json.loads(explanation.environment["TF_CONFIG"]), indent=2)
        command = shlex.join(explanation.command)
    return {"command": command, "explanation": explanation, "tf_config": tf_config, "unknown": unknown}


add_page(router, f"{JOB}/config", Access.VIEWER, "its config", config_view)
