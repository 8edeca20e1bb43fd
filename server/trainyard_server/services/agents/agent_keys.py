"""Which agent calls, by its key: every call about a run must be of the agent that has it."""

from trainyard_protocol.errors import NotFound, PermissionDenied
from trainyard_protocol.states import RunState
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.models import RunRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import people


def check_key(reader: Reader, agent: AgentRow | None, key: AgentKey) -> None:
    """Raise PermissionDenied where the agent has another key, or an operator has removed it and not added it again
    since. The service itself removes agents of a restored backup that do not call."""
    if agent is not None and not key.opens(agent.key_sha256):
        raise PermissionDenied(
            f"The agent id {agent.agent_id} belongs to an agent with another key. Id and key are together in "
            "agent.json of the agent's state directory: restore that file; or stop this agent and remove the file, "
            "and it joins as a new agent."
        )
    if agent is None or agent.removed_at is None or agent.restored:
        return
    name = agent.given_name or str(agent.info["name"])
    if not people.has_agent_token(reader, name, agent.removed_at):
        raise PermissionDenied(
            f"An operator has removed the agent {name} (id {agent.agent_id}). To let it come back, an operator runs "
            f"`trainyard agents add {name}`; where it has a token of its own, it needs the new one."
        )


def agents_with(reader: Reader, key: AgentKey) -> frozenset[str]:
    """The id of the agent with this key. Raises PermissionDenied where none has it."""
    agents = frozenset(agent.agent_id for agent in reader.agents() if key.opens(agent.key_sha256))
    if not agents:
        raise PermissionDenied("No agent has this key: an agent joins with its first sync.")
    return agents


def run_with(reader: Reader, run_id: str, key: AgentKey) -> RunRow:
    """The run, for its agent. Raises NotFound for an unknown run, PermissionDenied for another agent's."""
    run = reader.run(run_id)
    if run is None:
        raise NotFound(f"There is no run {run_id} here.")
    agent = reader.agent(run.agent_id)
    if agent is None or not key.opens(agent.key_sha256):
        raise PermissionDenied(f"The run {run_id} belongs to another agent: this call has another key than it.")
    return run


def live_run(reader: Reader, run_id: str, key: AgentKey) -> RunRow:
    """The run, for its agent, while it lives. Raises NotFound for an unknown or ended run, PermissionDenied for another
    agent's."""
    run = run_with(reader, run_id, key)
    if run.state is RunState.ENDED:
        raise NotFound(f"The run {run_id} has ended.")
    return run


def actor_of(agent: str) -> str:
    """The actor of what an agent reports. No person's name has a space."""
    return f"agent {agent}"
