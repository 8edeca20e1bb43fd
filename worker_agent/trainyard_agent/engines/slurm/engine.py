"""The slurm engine: jobs in the queue of a Slurm cluster, whose nodes are its pools.

All jobs run as the agent's user, as whom the agent submits them, so it is for the jobs of one user (`--one-user`).
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from trainyard_agent.engines.contract import ENVIRONMENTS, Claim, Engine, OpenEngine, Place, SettingsRefused
from trainyard_agent.engines.slurm import commands, doctor, site
from trainyard_agent.engines.slurm.commands import SlurmError
from trainyard_agent.engines.slurm.runtime import SlurmRuntime
from trainyard_agent.engines.slurm.settings import SlurmSettings
from trainyard_agent.engines.slurm.stager import SlurmStager
from trainyard_agent.host.accelerators import gpu_type
from trainyard_agent.runtimes.base import Orphan, Runtime
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.answers.health import Finding
from trainyard_protocol.job.resources import Capacity, Pool
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName, RuntimeOffer

_MEBIBYTE = 1 << 20
_EVERY_S = 30.0
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
        counts: Counter[str] = Counter()
        for entry in fields[3].split(","):
            words = entry.partition("(")[0].split(":")
            if len(words) == 3 and words[0] == "gpu" and words[2].isdecimal():
                kind = gpu_type(words[1])
                names[kind] = words[1]
                counts[kind] += int(words[2])
        kind, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        shapes[fields[0]] = Pool(
            nodes=1,
            vcpus=int(fields[1]),
            memory_bytes=int(fields[2].rstrip("+")) * _MEBIBYTE,
            accelerator_type=kind,
            accelerator_count=count,
        )
    pools = Counter(shapes.values())
    return Nodes(Capacity.of_pools(*(pool.model_copy(update={"nodes": count}) for pool, count in pools.items())), names)


def look(partition: str) -> Nodes:
    """The nodes now. Raises SlurmError."""
    chosen = [f"--partition={partition}"] if partition else []
    return parse_nodes(commands.run(["sinfo", "--noheader", "--Node", "--format=%N|%c|%m|%G|%t", *chosen]))


class NodeWatch:
    """Looks at the nodes every now and then, in a thread of its own. `longest_s` is the time limit of the partition;
    `problem`: why Slurm does not answer, or ""."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self.nodes = look(partition)
        self.longest_s = site.longest_s(site.partitions(), partition)
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
                self.longest_s = site.longest_s(site.partitions(), self._partition)
            except SlurmError as error:
                problem = f"Slurm does not answer: {error.strerror}"
            if problem and problem != self.problem:
                _log.warning("%s", problem)
            self.problem = problem


class SlurmEngine(Engine):
    name: RuntimeName = "slurm"

    def capacity(self, settings: AgentSettings) -> Capacity:
        """The nodes now. Raises SettingsRefused also for settings that name what the site does not have."""
        slurm = settings.of(SlurmSettings)
        with _on_a_login_node():
            for problem in site.problems(slurm.defaults):
                raise SettingsRefused(problem)
            return look(slurm.slurm_partition).capacity

    @contextmanager
    def open(self, place: Place) -> Iterator[OpenEngine]:
        settings, slurm = place.settings, place.settings.of(SlurmSettings)
        with _on_a_login_node():
            about = commands.version()
            watch = NodeWatch(slurm.slurm_partition)
        with closing(watch):
            watch.start()
            environments = slurm.directory / ENVIRONMENTS
            images = f"images by {slurm.slurm_images}" if slurm.slurm_images else ""

            def offer() -> RuntimeOffer:
                return RuntimeOffer(
                    name=self.name,
                    replica_environment=settings.environment,
                    about=", ".join(filter(None, (about, f"partition {slurm.slurm_partition or 'default'}", images))),
                    problem=watch.problem,
                )

            def described(info: AgentInfo) -> AgentInfo:
                update = {"capacity_mode": "strict", "capacity": watch.nodes.capacity, "runs_images": bool(images)}
                return info.model_copy(update=update)

            def claim(wanted: TrainingInput, _uses_gpus: bool) -> Claim | None:
                return Claim() if images or not wanted.image_uri else None

            yield OpenEngine(
                SlurmRuntime(
                    slurm.directory,
                    slurm.defaults,
                    watch.gres,
                    lambda: watch.longest_s,
                    images=slurm.slurm_images,
                    patience_s=settings.install_limits.patience_s,
                ),
                SlurmStager(
                    environments,
                    place.fetcher,
                    settings.python,
                    runtimes=place.table,
                    patience_s=settings.install_limits.patience_s,
                ),
                offer,
                claim,
                describe=described,
                written=(slurm.directory,),
            )

    @contextmanager
    def attach(self, settings: AgentSettings) -> Iterator[Runtime]:
        yield SlurmRuntime(settings.of(SlurmSettings).directory)

    def where(self, settings: AgentSettings) -> str:  # noqa: ARG002 - there is one
        return "in Slurm"

    def examine(self, settings: AgentSettings) -> Iterator[Finding]:
        slurm = settings.of(SlurmSettings)

        def nodes() -> int:
            return sum(pool.nodes for pool in look(slurm.slurm_partition).capacity.pools)

        return doctor.findings(slurm.directory, nodes, slurm.defaults)

    def orphans(self, settings: AgentSettings) -> list[Orphan]:
        return doctor.orphans(settings.of(SlurmSettings).directory)


@contextmanager
def _on_a_login_node() -> Iterator[None]:
    try:
        yield
    except SlurmError as error:
        raise SettingsRefused(f"--runtime slurm: {error.strerror}. Start the agent on a login node.") from error


ENGINE = SlurmEngine()
