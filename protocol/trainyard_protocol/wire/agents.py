"""An agent as it describes itself to the server: its runtimes, capacity and disks."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.message import Environment, Many, Wire
from trainyard_protocol.net.gcs import EMULATOR, without_secret

AGENT_KEY = "X-Trainyard-Agent-Key"
"""The header with the key of the agent that calls. The agents' token only lets an agent join."""
RuntimeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
"""The name of a runtime: "process", "docker", or one that this side does not know."""


class RuntimeOffer(Wire):
    """A runtime of an agent. `replica_environment` is added to the environment of every replica there (such as
    STORAGE_EMULATOR_HOST, which is reported without its secret); it must not contain other secrets. `about` says on
    what it runs ("Docker engine 20.10.24"), `problem` why it starts nothing now. `retiring`: it ends the runs that it
    has, and never starts another; a `problem` then says why not."""

    name: RuntimeName
    replica_environment: Environment = Field(default_factory=dict)
    about: str = ""
    problem: str = ""
    retiring: bool = False


PACKAGE_JOBS = frozenset({"process", "slurm"})
"""Runtimes for package jobs alone."""


def image_runtime(offers: Iterable[RuntimeOffer]) -> RuntimeOffer | None:
    """The runtime of jobs with an image: any that starts runs, except those for package jobs alone."""
    return next((offer for offer in offers if offer.name not in PACKAGE_JOBS and not offer.retiring), None)


def _reported(environment: dict[str, str]) -> dict[str, str]:
    return {name: without_secret(value) if name == EMULATOR else value for name, value in environment.items()}


class Disk(Wire):
    """A directory that an agent writes to. `free_bytes` of its file system change in steps of a tenth, so that reports
    change rarely. `problem` is why no run can start that needs it ("cannot be written (Read-only file system)"); ""
    while it has room."""

    path: str
    free_bytes: int = 0
    problem: str = ""


def no_room(disks: Iterable[Disk]) -> str:
    """The first directory without room, and its problem: "/data has less than 250 MB left"; "" if all have room."""
    return next((f"{disk.path} {disk.problem}" for disk in disks if disk.problem), "")


class MountOffer(Wire):
    """A directory of the site that an agent's replicas can have. `projects`: those that may use it; empty: all."""

    name: str
    read_only: bool = True
    projects: Many[str] = ()

    def serves(self, project: str) -> bool:
        return not self.projects or project in self.projects


HOST, CLUSTER = "host", "cluster"
"""Kinds of agents: of one machine, or of an engine that spans hosts and goes on without its agent."""


class AgentInfo(Wire):
    """An agent. `agent_id` survives restarts. `kind` is HOST or CLUSTER.

    `capacity_mode`: `strict` places a gang only where it fits as asked; `fit` scales one down that is larger
    than the whole machine. `runtimes` has every runtime of the agent, all on the one `capacity`. `runtime` is that of
    package jobs, with its `replica_environment`; `runs_images`: a job with an image can start now. `host` is the
    machine's host name. `in_flight`: its engine has a queue of its own, which decides what starts, and gets so many
    runs to choose from; 0: the server decides, by what is free. `disks`: the directories that it writes to; while one
    has no room, nothing is started there. `device_errors`: of the hardware of its GPUs, since the agent started, one
    text each: the server drains it. `address`: that at which replicas on other agents of its `group` reach its own;
    "": it has no part of a gang over several agents. `peer_address` (`host:port`): where it answers other agents.
    `unreached` are the ids of the agents that it does not reach, as far as it has asked.
    `mounts`: the directories that its jobs may mount. `cache`: the shared one of each project; None: there is none.
    `runtime_versions`: those that its site's runtimes file has.
    """

    agent_id: str
    name: str
    version: str
    runtime: RuntimeName
    capacity_mode: Literal["strict", "fit"]
    runs_images: bool
    capacity: Capacity
    replica_environment: Environment = Field(default_factory=dict)
    runtimes: Many[RuntimeOffer] = ()
    kind: str = HOST
    host: str = ""
    in_flight: Annotated[int, Field(ge=0)] = 0
    disks: Many[Disk] = ()
    device_errors: Many[str] = ()
    address: str = ""
    group: str = ""
    peer_address: str = ""
    unreached: Many[str] = ()
    mounts: Many[MountOffer] = ()
    cache: MountOffer | None = None
    runtime_versions: Many[str] = ()

    def offer(self, runtime: str) -> RuntimeOffer | None:
        """The runtime of that name, if the agent has it."""
        return next((offer for offer in self.runtimes if offer.name == runtime), None)

    def environment_in(self, runtime: str) -> dict[str, str]:
        """The variables that the agent adds to a replica in that runtime ("": not known which)."""
        offer = self.offer(runtime)
        return self.replica_environment if offer is None else offer.replica_environment

    def reported(self) -> "AgentInfo":
        """The agent as the server may know it, and may show it: without the secret in the address of gs://."""
        return self.model_copy(
            update={
                "replica_environment": _reported(self.replica_environment),
                "runtimes": tuple(
                    offer.model_copy(update={"replica_environment": _reported(offer.replica_environment)})
                    for offer in self.runtimes
                ),
            }
        )

    @property
    def runs_packages(self) -> bool:
        """Whether a package job can start now."""
        offer = self.offer(self.runtime)
        return offer is None or not offer.problem

    @property
    def no_processes(self) -> str:
        """The reason why package jobs may not run as processes there; "" if they may, or if nobody would ask."""
        offer = self.offer("process")
        return offer.problem if offer is not None and offer.retiring else ""

    @property
    def engine_problem(self) -> str:
        """The reason why its engine (of containers, or that spans hosts) starts nothing now; "" if it does, or is not
        expected to."""
        offer = image_runtime(self.runtimes) or self.offer(self.runtime)
        return "" if offer is None or offer.retiring else offer.problem


class ServerAbout(Wire):
    """The answer of `GET /agent/v1/server`. `agent` is the name that the token gives its agent; "": it gives none."""

    version: str
    agent: str = ""
