"""The offer of a Slurm cluster: its nodes as pools, the runtime and its stager.

All jobs run as the agent's user, as whom the agent submits them, so it is for the jobs of one user (`--one-user`).
"""

import argparse
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.engines.slurm import commands
from trainyard_agent.engines.slurm import doctor as slurm
from trainyard_agent.engines.slurm.commands import SlurmError
from trainyard_agent.engines.slurm.runtime import SlurmRuntime
from trainyard_agent.host.gpu_types import gpu_type
from trainyard_agent.host.process_tags import StillAlive
from trainyard_agent.runtime_selection import ENVIRONMENTS, OpenRuntimes, RuntimeRefused
from trainyard_agent.runtimes.runtime_set import Choice, Choices, RuntimeSet
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.environments.python_environment import PackageStager
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_agent.staging.stager_set import StagerSet
from trainyard_protocol.job.resources import Capacity, Pool
from trainyard_protocol.job.runtimes import load_runtimes
from trainyard_protocol.net.gcs import EMULATOR
from trainyard_protocol.states import Reason
from trainyard_protocol.views.health import Finding
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName, RuntimeOffer

NAME: RuntimeName = "slurm"
_MEBIBYTE = 1 << 20
_EVERY_S = 30.0
_KILL_TIMEOUT_S = 60.0
_PAUSE_S = 0.5
_UNUSABLE = ("down", "drain", "fail", "inval", "maint", "power", "unk", "futr", "reboot")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The usable nodes of a partition. `gres` is Slurm's name of each accelerator type."""

    capacity: Capacity
    gres: Mapping[str, str]


def parse_nodes(output: str) -> Nodes:
    """Parse `NAME|CPUS|MiB|GRES|STATE` per line; a node of several partitions is there several times. GPUs without a
    type in Slurm are not counted: no job could ask for them. Pure."""
    shapes: dict[str, Pool] = {}
    names: dict[str, str] = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 5 or not fields[1].isdecimal():
            continue
        if fields[4].startswith(_UNUSABLE) or fields[4].endswith("*"):  # *: it does not respond
            continue
        found: Counter[str] = Counter()
        for entry in fields[3].split(","):
            words = entry.partition("(")[0].split(":")
            if len(words) == 3 and words[0] == "gpu" and words[2].isdecimal():
                kind = gpu_type(words[1])
                names[kind] = words[1]
                found[kind] += int(words[2])
        kind, count = max(found.items(), key=lambda item: item[1], default=("", 0))
        shapes[fields[0]] = Pool(
            nodes=1,
            vcpus=int(fields[1]),
            memory_bytes=int(fields[2].rstrip("+")) * _MEBIBYTE,
            accelerator_type=kind,
            accelerator_count=count,
        )
    pools = Counter(shapes.values())
    return Nodes(
        Capacity.of_pools(*(pool.model_copy(update={"nodes": count}) for pool, count in pools.items())), names
    )


def look(partition: str) -> Nodes:
    """The nodes now. Raises SlurmError."""
    chosen = [f"--partition={partition}"] if partition else []
    return parse_nodes(commands.run(["sinfo", "--noheader", "--Node", "--format=%N|%c|%m|%G|%t", *chosen]))


def capacity_of(options: argparse.Namespace) -> Capacity:
    """Raises RuntimeRefused if Slurm does not answer."""
    try:
        return look(options.slurm_partition).capacity
    except SlurmError as error:
        raise RuntimeRefused(
            f"--runtime slurm: {error.strerror}. Start the agent on a login node."
        ) from error


class NodeWatch:
    """Looks at the nodes every now and then, in a thread of its own. `problem`: why Slurm does not answer, or ""."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self.nodes = look(partition)
        self.problem = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def gres(self, kind: str) -> str:
        return self.nodes.gres.get(kind.upper(), kind.lower())

    def _repeat(self) -> None:
        while not self._closed.wait(_EVERY_S):
            try:
                self.nodes, problem = look(self._partition), ""
            except SlurmError as error:
                problem = f"Slurm does not answer: {error.strerror}"
            if problem and problem != self.problem:
                _log.warning("%s", problem)
            self.problem = problem


@contextmanager
def open_runtimes(
    options: argparse.Namespace, agent_id: str, control_plane: ServerClient
) -> Iterator[OpenRuntimes]:
    """Open the runtime for these options. Raises RuntimeRefused."""
    shared: Path = options.shared_dir
    environment = dict(options.replica_env)
    try:
        about = commands.version()
        watch = NodeWatch(options.slurm_partition)
    except SlurmError as error:
        raise RuntimeRefused(
            f"--runtime slurm: {error.strerror}. Start the agent on a login node."
        ) from error
    with closing(watch):
        watch.start()
        runtime = SlurmRuntime(shared, options.slurm_partition, options.slurm_account, watch.gres)
        fetcher = PackageFetcher(control_plane, environment.get(EMULATOR, ""))
        stager = PackageStager(
            shared / ENVIRONMENTS, fetcher, options.python, runtimes=load_runtimes(options.runtimes)
        )
        choices = Choices(lambda _: Choice(NAME))

        def info(fields: AgentInfo) -> AgentInfo:
            offer = RuntimeOffer(
                name=NAME,
                replica_environment=environment,
                about=f"{about}, partition {options.slurm_partition or 'default'}",
                problem=watch.problem,
            )
            return fields.model_copy(
                update={
                    "runtime": NAME,
                    "runtimes": (offer,),
                    "replica_environment": environment,
                    "runs_images": False,
                    "capacity_mode": "strict",
                    "capacity": watch.nodes.capacity,
                }
            )

        _log.info("agent %s submits to %s", agent_id, about)
        yield OpenRuntimes(RuntimeSet({NAME: runtime}, choices), StagerSet({NAME: stager}, choices), info)


def stop_all(options: argparse.Namespace) -> str:
    """Stop every run and wait for their ends. Returns how many, as a sentence. Raises StillAlive."""
    runtime = SlurmRuntime(options.shared_dir)
    runs = [handle.run_id for handle in runtime.recover()]
    alive = [report for run_id in runs for report in runtime.observe(run_id) if report.exit is None]
    for run_id in runs:
        runtime.stop(run_id, options.grace, Reason.HOST_SHUTDOWN)
    give_up_at = time.monotonic() + options.grace + _KILL_TIMEOUT_S
    while left := [run_id for run_id in runs if any(one.exit is None for one in runtime.observe(run_id))]:
        if time.monotonic() > give_up_at:
            raise StillAlive(f"the jobs in Slurm of the runs {', '.join(left)} do not end")
        time.sleep(_PAUSE_S)
    return f"Stopped {len(alive)} replicas in Slurm."


def examine(options: argparse.Namespace) -> list[Finding]:
    """Findings of the doctor."""

    def nodes() -> int:
        return sum(pool.nodes for pool in look(options.slurm_partition).capacity.pools)

    return list(slurm.findings(options.shared_dir, nodes))
