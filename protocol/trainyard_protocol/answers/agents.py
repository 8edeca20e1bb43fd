"""Messages of operators about agents."""

import itertools
from collections.abc import Collection, Mapping

from pydantic import BaseModel, ConfigDict

REFUSED = "the server refuses this agent:"
"""The beginning of an agent's log message, up to the server's words, when it is refused, which no waiting mends."""

ANSWERED = "the server answers again"
"""The agent's log message after a failure."""

_SHORTEST_PREFIX = 4
"""Characters of the beginning of an id by which an agent is named, at least."""


def matching_ids(word: str, names: Mapping[str, str]) -> list[str]:
    """The ids of the agents that a word means, of those with these `names` by id: the id itself, else those of that
    name, else those whose ids begin so."""
    by_name = [agent_id for agent_id, name in names.items() if name == word]
    by_prefix = [agent_id for agent_id in names if len(word) >= _SHORTEST_PREFIX and agent_id.startswith(word)]
    return [word] if word in names else by_name or by_prefix


def free_name(wanted: str, used: Collection[str]) -> str:
    """The name, or the next one like it that no other agent uses: vm, vm-2, vm-3."""
    names = itertools.chain([wanted], (f"{wanted}-{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in used)


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
