"""Parts of an agent, which are made at its start."""

from collections.abc import Callable
from dataclasses import dataclass

from trainyard_agent.control.launch import TrackingAddresses
from trainyard_agent.control.start_deadline import START_DEADLINE_S
from trainyard_agent.host.clock import Clock
from trainyard_agent.lease.lease import Lease
from trainyard_agent.monitoring.disk_watch import DiskWatch
from trainyard_agent.monitoring.usage_reporter import USAGE_S
from trainyard_agent.peers.meeting import Meeting
from trainyard_agent.peers.members import PeerMembers
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import Stager
from trainyard_agent.staging.mounts import AgentMounts
from trainyard_protocol.wire.agents import AgentInfo


@dataclass(frozen=True, slots=True)
class AgentParts:
    """Parts of an agent. `info`: what it offers now, which may change. `members`: the other agents of its server, by
    which it keeps `lease`. `disks`: those that it and its runs write to. `mounts`: the directories that jobs may name.
    `tracking`: where replicas reach the server. `meet` makes the listeners of a part of a gang over several agents,
    before its start. `usage_s`: seconds between two usage measurements; 0: none. `start_deadline_s`: how long an engine
    may give the same reasons for not starting a run."""

    runtime: Runtime
    control_plane: ServerClient
    stager: Stager
    clock: Clock
    info: Callable[[], AgentInfo]
    lease: Lease
    members: PeerMembers
    disks: DiskWatch
    mounts: AgentMounts
    tracking: TrackingAddresses
    meet: Callable[[str], Meeting] = Meeting
    usage_s: float = USAGE_S
    start_deadline_s: float = START_DEADLINE_S
