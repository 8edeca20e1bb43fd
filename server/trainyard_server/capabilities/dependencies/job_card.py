"""Card of a job's page with the jobs before and after it."""

from collections.abc import Mapping
from typing import Any

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_server.capabilities.dependencies.dependencies import Dependencies
from trainyard_server.use_cases import UseCases


def neighbours_context(cases: UseCases, project: str, job_id: str, _detail: JobDetail) -> Mapping[str, Any]:
    """The context of dependencies/_neighbours.html."""
    return {"neighbours": cases.of(Dependencies).of(project, job_id)}
