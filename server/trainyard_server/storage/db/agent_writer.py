"""Writes about agents: their heartbeats, their leases, whether they start runs."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete

from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.domain.scheduling.blame import HostFailure
from trainyard_server.storage.db.base.agent_models import AgentRow, InstallationRow, LeaseRow
from trainyard_server.storage.db.base.statements import add
from trainyard_server.storage.db.live.writer import LiveWriter
from trainyard_server.storage.db.queries.reader import AgentHeartbeat


class AgentWriter(LiveWriter):
    """The part of a `repository.Writer` that is of agents."""

    def set_draining(self, agent: AgentRow, draining: bool, reason: str = "") -> None:
        """`reason`: why the service drains it. An agent that starts runs again has failed none."""
        failures = agent.failures if draining else []
        self._change_agent(agent, draining=draining, drain_reason=reason, failures=failures)

    def set_failures(self, agent: AgentRow, failures: Iterable[HostFailure]) -> None:
        self._change_agent(agent, failures=[failure.stored() for failure in failures])

    def remove_agent(self, agent: AgentRow, now: datetime, *, may_return: bool = False) -> None:
        """Remove the agent. One of a backup that `may_return` comes back when it calls; others need a new token."""
        self._change_agent(agent, removed_at=now, restored=agent.restored and may_return)

    def mark_restored(self, agent: AgentRow, last_seen: datetime) -> None:
        """Record that the agent is one of a backup, under a name that leaves its own to whoever calls first. It is not
        alive until it calls: it was seen at `last_seen`."""
        info = {**agent.info, "name": f"{agent.info['name']}-before-restore"}
        self._change_agent(agent, restored=True, last_seen=last_seen, info=info)

    def unmark_restored(self, agent: AgentRow) -> None:
        """Record that an agent of a backup has called. Which lease it has got since the backup is not known."""
        self._change_agent(agent, restored=False, lease_s=None)

    def save_agent(
        self, info: AgentInfo, key_sha256: str, orphaned_runs: Sequence[str], now: datetime, given_name: str = ""
    ) -> AgentHeartbeat:
        """Store the agent with its key and a heartbeat, as a new one if it was removed. `given_name` is that of its
        token or its own, which is in `info` unless another agent has it. `orphaned_runs`: ended runs whose processes
        still run there."""
        described = {"info": info.model_dump(mode="json"), "orphaned_runs": list(orphaned_runs)}
        identity = {"given_name": given_name, "key_sha256": key_sha256}
        row = self.agent(info.agent_id)
        if row is None:
            row = AgentRow(agent_id=info.agent_id, first_seen=now, last_seen=now, heartbeats=1, **described, **identity)
            add(self._connection, [row])
            self.live.add_agent(row)
            self.changes.agents.add(row.agent_id)
            return AgentHeartbeat(row.agent_id, row.heartbeats, now)
        wanted: dict[str, Any] = {**described}
        if row.removed_at is not None:
            wanted |= {"removed_at": None, "draining": False, "drain_reason": "", "failures": []}
        if changed := {name: value for name, value in wanted.items() if getattr(row, name) != value}:
            self.changes.agents.add(row.agent_id)
        changed |= {name: value for name, value in identity.items() if getattr(row, name) != value}
        self._note_agent(row, heartbeats=row.heartbeats + 1, last_seen=now, **changed)
        return AgentHeartbeat(row.agent_id, row.heartbeats, now)

    def answer_agent(
        self, agent: AgentRow, version: str, lease_s: float | None, members: Sequence[str], now: datetime
    ) -> None:
        """Record the answer that is sent to the agent, with its lease and the members of that."""
        values = agent.with_answer(version, lease_s, members)
        self._note_agent(agent, **values, heartbeats=agent.heartbeats + 1, last_seen=now)

    def grant_lease(self, agent: AgentRow, lease_s: float | None) -> None:
        """Allow the agent to be silent for `lease_s` seconds (None: without limit)."""
        if agent.lease_s != lease_s:
            self._note_agent(agent, lease_s=lease_s)

    def confirm_lease(self, agent: AgentRow) -> None:
        """Record that the agent has the lease of the last answer to it, and no other."""
        if not agent.is_confirmed:
            self._note_agent(agent, **agent.with_confirmed_answer())

    def _change_agent(self, agent: AgentRow, **values: Any) -> None:
        """Change what the scheduler looks at."""
        self._note_agent(agent, **values)
        self.changes.agents.add(agent.agent_id)

    def _note_agent(self, agent: AgentRow, **values: Any) -> None:
        own = self.live.agent(agent.agent_id)
        assert own is not None
        self._change(own, agent, values, agent_id=agent.agent_id)

    def acquire_lease(self, name: str, holder: str, ttl_s: float, before: LeaseRow | None) -> bool:
        """Acquire or renew the lease if it has not changed since it was read. Whether `holder` has it now."""
        lease = self.session.get(LeaseRow, name)
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
