"""Route of the jobs before and after a job."""

from trainyard_protocol.answers.dependencies import DependenciesView
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.dependencies.dependencies import Dependencies
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/trainyard/v1")


@router.get("/projects/{project}/jobs/{job_id}/dependencies", Access.VIEWER, "jobs before and after it")
def dependencies(project: str, job_id: str, cases: Cases) -> DependenciesView:
    """The jobs that a job starts after (`after`), and those that start after it, each with its state."""
    return cases.of(Dependencies).of(project, job_id)
