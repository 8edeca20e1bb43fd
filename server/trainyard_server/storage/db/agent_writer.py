"""Writes about agents: their heartbeats, their leases, whether they start runs."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import delete
from sqlalchemy.orm import Session

from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.domain.scheduling.blame import HostFailure
from trainyard_server.storage.db.base.agent_models import AgentRow, InstallationRow, LeaseRow
from trainyard_server.storage.db.base.revisions import AgentHeartbeat, Changes
from trainyard_server.storage.db.queries.job_inputs import JobInputs
from trainyard_server.storage.db.queries.reader import Reader


class AgentWriter(Reader):
    """The part of a `repository.Writer` that is of agents."""

    def __init__(self, session: Session, inputs: JobInputs) -> None:
        super().__init__(session, inputs)
        self.changes = Changes()

    def set_draining(self, agent: AgentRow, draining: bool, reason: str = "") -> None:
        """`reason`: why the service drains it. An agent that starts runs again has failed none."""
        agent.draining, agent.drain_reason = draining, reason
        if not draining:
            agent.failures = []
        self.changes.agents.add(agent.agent_id)

    def set_failures(self, agent: AgentRow, failures: Iterable[HostFailure]) -> None:
        agent.failures = [failure.stored() for failure in failures]
        self.changes.agents.add(agent.agent_id)

    def remove_agent(self, agent: AgentRow, now: datetime) -> None:
        agent.removed_at = now
        self.changes.agents.add(agent.agent_id)

    def mark_restored(self, agent: AgentRow, last_seen: datetime) -> None:
        """Record that the agent is one of a backup, under a name that leaves its own to whoever calls first. It is not
        alive until it calls: it was seen at `last_seen`."""
        agent.restored, agent.last_seen = True, last_seen
        agent.info = {**agent.info, "name": f"{agent.info['name']}-before-restore"}
        self.changes.agents.add(agent.agent_id)

    def unmark_restored(self, agent: AgentRow) -> None:
        """Record that an agent of a backup has called. Which lease it has got since the backup is not known."""
        agent.restored, agent.lease_s = False, None
        self.changes.agents.add(agent.agent_id)

    def save_agent(
        self, info: AgentInfo, key_sha256: str, orphaned_runs: Sequence[str], now: datetime, given_name: str = ""
    ) -> AgentHeartbeat:
        """Store the agent with its key and a heartbeat, as a new one if it was removed. `given_name` is that of its
        token or its own, which is in `info` unless another agent has it. `orphaned_runs`: ended runs whose processes
        still run there."""
        row = self.agent(info.agent_id)
        if row is None:
            row = AgentRow(agent_id=info.agent_id, first_seen=now, heartbeats=0, sent_version="")
            self._session.add(row)
        described, orphans = info.model_dump(mode="json"), list(orphaned_runs)
        if (row.info, row.orphaned_runs) != (described, orphans):
            row.info, row.orphaned_runs = described, orphans
            self.changes.agents.add(row.agent_id)
        if row.removed_at is not None:
            row.removed_at, row.draining, row.drain_reason, row.failures = None, False, "", []
            self.changes.agents.add(row.agent_id)
        row.given_name, row.key_sha256 = given_name, key_sha256
        row.heartbeats += 1
        row.last_seen = now
        self._session.flush()
        return AgentHeartbeat(row.agent_id, row.heartbeats, now)

    def answer_agent(
        self, agent: AgentRow, version: str, lease_s: float | None, members: Sequence[str], now: datetime
    ) -> None:
        """Record the answer that is sent to the agent, with its lease and the members of that."""
        agent.note_answer(version, lease_s, members)
        agent.heartbeats += 1
        agent.last_seen = now
        self._session.flush()

    def grant_lease(self, agent: AgentRow, lease_s: float | None) -> None:
        """Allow the agent to be silent for `lease_s` seconds (None: without limit)."""
        agent.lease_s = lease_s
        self._session.flush()

    def confirm_lease(self, agent: AgentRow) -> None:
        """Record that the agent has the lease of the last answer to it, and no other."""
        agent.confirm_answer()
        self._session.flush()

    def acquire_lease(self, name: str, holder: str, ttl_s: float, before: LeaseRow | None) -> bool:
        """Acquire or renew the lease if it has not changed since it was read. Whether `holder` has it now."""
        lease = self._session.get(LeaseRow, name)
        if lease is None:
            self._session.add(LeaseRow(name=name, holder=holder, heartbeat=1, ttl_s=ttl_s))
        elif before is not None and (lease.holder, lease.heartbeat) == (before.holder, before.heartbeat):
            lease.holder, lease.heartbeat, lease.ttl_s = holder, lease.heartbeat + 1, ttl_s
        else:
            return False
        self._session.flush()
        return True

    def release_lease(self, name: str, holder: str) -> None:
        """Delete the lease of this holder; does nothing if another one holds it."""
        self._session.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.holder == holder))

    def set_installation(self, installation_id: str) -> None:
        self._session.add(InstallationRow(installation_id=installation_id))
        self._session.flush()
