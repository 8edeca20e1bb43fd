"""Agents for tests, with what they do not care for."""

from collections.abc import Callable
from typing import Any

from trainyard_agent.agent import Agent
from trainyard_agent.agent_parts import AgentParts
from trainyard_agent.control.launch import TrackingAddresses
from trainyard_agent.host.clock import Clock
from trainyard_agent.lease.lease import Lease
from trainyard_agent.lease.majority import Majority
from trainyard_agent.monitoring.disk_watch import DiskWatch
from trainyard_agent.peers.members import PeerMembers
from trainyard_agent.peers.reach import Reach
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import Stager
from trainyard_agent.staging.mounts import AgentMounts
from trainyard_protocol.job.mounts import SiteMounts
from trainyard_protocol.wire.agents import AgentInfo


def agent_of(
    runtime: Runtime,
    client: ServerClient,
    stager: Stager,
    clock: Clock,
    info: Callable[[], AgentInfo],
    lease: Lease | None = None,
    **parts: Any,
) -> Agent:
    """An agent that is alone, watches no disk and has no mounts, unless `parts` say otherwise."""
    lease = lease or Lease(clock)
    usual: dict[str, Any] = {
        "members": PeerMembers(Majority(info().agent_id, lease, clock), Reach()),
        "disks": DiskWatch(),
        "mounts": AgentMounts(SiteMounts()),
        "tracking": TrackingAddresses(),
    }
    return Agent(AgentParts(runtime, client, stager, clock, info, lease, **(usual | parts)))
