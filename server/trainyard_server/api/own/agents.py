"""Routes of operators about agents."""

from typing import Annotated

from fastapi import APIRouter

from trainyard_protocol.views.agents import AgentChange, AgentsView
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, json_of

router = APIRouter(prefix="/trainyard/v1")


@router.patch("/agents/{agent}")
def drain(agent: str, body: Annotated[AgentChange, json_of(AgentChange)], cases: Cases) -> AgentsView:
    return cases.agents.drain(agent, body.draining)


@router.delete("/agents/{agent}")
def remove(agent: str, cases: Cases, caller: AuthenticatedCaller) -> AgentsView:
    return cases.agents.remove(caller, agent)
