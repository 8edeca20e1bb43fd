"""Route of why a job waits."""

from trainyard_protocol.answers.why import QueueExplanationView
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.why.queue_explanation import QueueExplanation
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/trainyard/v1")


@router.get("/projects/{project}/jobs/{job_id}/why", Access.VIEWER, "why it waits")
def why(project: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> QueueExplanationView:
    return cases.of(QueueExplanation).explain(caller.visible, project, job_id)
