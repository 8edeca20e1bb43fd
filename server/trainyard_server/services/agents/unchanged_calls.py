"""Calls of agents that change nothing: they are counted in memory, and touch no database."""

from collections.abc import Collection

from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.sync import SyncRequest
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import live_runs
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.services.agents import run_reports
from trainyard_server.services.agents.agents import unique_name
from trainyard_server.storage.db.base.agent_models import AgentRow

_ALIVE = (ReplicaState.STARTING, ReplicaState.RUNNING)
_CONTACT_S = 10.0
"""How old the last contact of an agent in the database may be."""

_MOST_RUNS = 20


class UnchangedCalls:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._written_at: dict[str, float] = {}  # when each agent's last contact was written, by the stopwatch

    def written(self, agent_id: str) -> None:
        """Note that the agent's last contact is in the database now."""
        self._written_at[agent_id] = self._backend.agent_liveness.stopwatch()

    def counts(self, request: SyncRequest, key: AgentKey) -> bool:
        """Count a call that changes nothing but the time of the agent's last contact, which is written every few
        seconds. False for any other, and where another server reads that time."""
        backend, agent_id = self._backend, request.agent.agent_id
        liveness = backend.agent_liveness
        written_at = self._written_at.get(agent_id)
        if not backend.store.exclusive or written_at is None or liveness.stopwatch() - written_at >= _CONTACT_S:
            return False
        if len(request.runs) > _MOST_RUNS:  # to look at many takes time that all callers wait for
            return False
        with backend.store.live() as reader:
            row = reader.agent(agent_id)
            if row is None or not key.opens(row.key_sha256) or row.removed_at is not None or row.restored:
                return False
            described = request.agent.model_copy(update={"name": unique_name(reader, row, request.agent)})
            if not liveness.is_alive(row) or row.info != described.model_dump(mode="json"):
                return False
            mine = {run.run_id: (run, gang) for run, gang in live_runs(reader, agent_id)}
            if row.orphaned_runs != left_runs(request, mine):
                return False
            if not run_reports.are_known(reader, mine, request, backend.clock()):
                return False
        has_last = backend.membership.called(agent_id, request.agent.peer_address, request.echo, request.agent.group)
        if confirms(row, request, has_last=has_last) and not row.is_confirmed:
            return False
        liveness.count_contact(row)
        return True


def left_runs(request: SyncRequest, mine: Collection[str]) -> list[str]:
    """The runs that go on at the agent although they are not among its own: they have ended."""
    alive = {run.run_id for run in request.runs if any(replica.state in _ALIVE for replica in run.replicas)}
    return sorted(alive.difference(mine))


def confirms(row: AgentRow, request: SyncRequest, *, has_last: bool) -> bool:
    """Whether the agent has the last answer that was recorded."""
    return row.sent_version == request.seen and (has_last or not row.has_members)
