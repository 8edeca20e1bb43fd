"""The platforms that an agent can run on: a machine, or an engine that spans hosts. `--runtime` names one of them.

To add one, register it here: the agent's command reads nothing else. The runtimes of a machine are registered in
`runtime_selection.RUNTIMES`.
"""

import argparse
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from trainyard_agent import capacity, kubernetes_platform, runtime_selection, slurm_selection
from trainyard_agent.doctor import examine
from trainyard_agent.host.clock import Clock
from trainyard_agent.host.identity import Identity, identity
from trainyard_agent.lease import lease_file, watchdog_files
from trainyard_agent.lease.lease import Lease
from trainyard_agent.runtime_selection import OpenRuntimes
from trainyard_agent.server_client import ServerClient
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.views.health import Finding
from trainyard_protocol.wire.agents import CLUSTER, HOST


@dataclass(frozen=True, slots=True)
class Platform:
    """Place of an agent, by its options.

    `identity`: who the agent is, again after a restart. `capacity`: what replicas may use in all. `lease`: that of the
    replicas, with whatever ends them when no agent does; an engine that goes on without its agent has none to keep.
    `open`: the runtimes as one, with their stagers, networks and users, given the agent's id and its client.
    `stop_all`: stop what runs there beside the processes and containers of this machine, and say how much.
    `examine`: findings of the doctor.
    """

    kind: str
    identity: Callable[[argparse.Namespace], Identity]
    capacity: Callable[[argparse.Namespace], Capacity]
    lease: Callable[[argparse.Namespace, Clock], Lease]
    open: Callable[[argparse.Namespace, str, ServerClient], AbstractContextManager[OpenRuntimes]]
    stop_all: Callable[[argparse.Namespace], str]
    examine: Callable[[argparse.Namespace], list[Finding]]


def _lease(options: argparse.Namespace, clock: Clock) -> Lease:
    watchdog = watchdog_files.WatchdogKeeper(options.state_dir)
    return Lease(clock, options.state_dir / lease_file.NAME, watchdog.ensure_running)


MACHINE = Platform(
    kind=HOST,
    identity=lambda options: identity(options.state_dir),
    capacity=lambda options: capacity.detect(options.cpus, options.memory_gb, options.tpus),
    lease=_lease,
    open=runtime_selection.open_runtimes,
    stop_all=lambda _: "",
    examine=lambda options: examine(options.state_dir, options.live_runs, options.fix),
)

SLURM = Platform(
    kind=CLUSTER,
    identity=lambda options: identity(options.state_dir),
    capacity=slurm_selection.capacity_of,
    lease=lambda _, clock: Lease(clock),
    open=slurm_selection.open_runtimes,
    stop_all=slurm_selection.stop_all,
    examine=slurm_selection.examine,
)

KUBERNETES = Platform(
    kind=CLUSTER,
    identity=kubernetes_platform.identity_of,
    capacity=kubernetes_platform.detect,
    lease=lambda _, clock: Lease(clock),
    open=kubernetes_platform.open_cluster,
    stop_all=kubernetes_platform.stop_all,
    examine=kubernetes_platform.examine,
)

PLATFORMS: Mapping[str, Platform] = {
    **dict.fromkeys(runtime_selection.ADMITTED, MACHINE),
    kubernetes_platform.NAME: KUBERNETES,
    slurm_selection.NAME: SLURM,
}
"""The platform of each `--runtime`."""
