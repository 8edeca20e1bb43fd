"""Messages of operators about agents."""

from pydantic import BaseModel, ConfigDict


class AgentChange(BaseModel):
    """`draining`: the agent is given no new run; those that it has go on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draining: bool


class AgentRef(BaseModel):
    """An agent that was changed or removed. `runs` have not ended."""

    agent_id: str
    name: str
    runs: int


class AgentsView(BaseModel):
    agents: tuple[AgentRef, ...]
