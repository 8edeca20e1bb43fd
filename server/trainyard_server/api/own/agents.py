"""Routes of operators about agents."""

from trainyard_protocol.answers.agents import AgentChange, AgentsView
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/trainyard/v1")


@router.patch("/agents/{agent}", Access.OPERATOR, "whether the agent, by name or id, is given new runs", "agents.drain")
def drain(agent: str, body: AgentChange, cases: Cases) -> AgentsView:
    return cases.agents.drain(agent, body.draining)


@router.delete("/agents/{agent}", Access.OPERATOR, "forget it, and its tokens", "agents.remove")
def remove(agent: str, cases: Cases, caller: AuthenticatedCaller) -> AgentsView:
    return cases.agents.remove(caller, agent)
