"""Messages of operators about agents."""

from pydantic import BaseModel, ConfigDict

REFUSED = "the server refuses this agent:"
"""The beginning of an agent's log message, up to the server's words, when it is refused, which no waiting mends."""

ANSWERED = "the server answers again"
"""The agent's log message after a failure."""


SHORTEST_PREFIX = 4
"""Characters of the beginning of an id by which an agent is named, at least."""


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
