"""Route that empties an agent."""

from trainyard_protocol.answers.agents import AgentsView
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.preemption.preemption import Preemptions
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/trainyard/v1")


@router.post("/agents/{agent}:evict", Access.OPERATOR, "move its runs", "agents.evict")
def evict(agent: str, cases: Cases) -> AgentsView:
    """Give an agent, by name or id, no new run; stop each of its runs once that has saved a checkpoint."""
    return cases.of(Preemptions).evict(agent)
