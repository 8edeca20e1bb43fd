"""The contract of an engine, which runs replicas: as processes, as containers, as pods, as jobs of a queue.

An engine is a folder of this package, and a name in `registry.ENGINES`. Its `settings.py` has SETTINGS, its `engine.py`
ENGINE, which fulfils `Engine`. Nothing outside of the folder knows it by name.

An engine of a machine shares its capacity and its lease with the machine's others. So it keeps each run in a directory
`STATE_DIR/ANY/RUN`, as the watchdog reads it (`lease/watchdog_files.py`): run.json with `launched`, `grace_s` and
`addresses` by replica, stop.json once it is stopped, and for each replica a directory of its name with exit.json once
it has ended, or `alive`, which is locked until then. An engine that spans hosts goes on without its agent, keeps its
state where it likes, and has no lease.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainyard_agent.engines import capacity as machine
from trainyard_agent.engines.registry import kind_of
from trainyard_agent.host.identity import Identity, identity
from trainyard_agent.runtimes.base import Orphan, Runtime
from trainyard_agent.server_client import ServerClient
from trainyard_agent.settings import AgentSettings
from trainyard_agent.staging.base import Stager
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_protocol.answers.health import Finding
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.job.runtimes import Runtimes, load_runtimes
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName, RuntimeOffer

ENVIRONMENTS, STAGING = "environments", "staging"


class SettingsRefused(Exception):
    """The agent cannot run with these settings; the message says why."""


@dataclass(frozen=True)
class Place:
    """An agent that opens an engine. `admits`: new runs may be placed there; else it only ends what it has. `alone`:
    the user has named this engine. `private`: files of the machine's engines that no program of a job may reach."""

    settings: AgentSettings
    agent_id: str
    control_plane: ServerClient
    admits: bool = True
    alone: bool = False
    private: tuple[Path, ...] = ()

    @cached_property
    def table(self) -> Runtimes:
        """The images of runtime versions. Raises InvalidArgument."""
        return load_runtimes(self.settings.runtimes)

    @property
    def fetcher(self) -> PackageFetcher:
        return PackageFetcher(self.control_plane, self.settings.storage_emulator)


@dataclass(frozen=True, slots=True)
class Claim:
    """An engine's word on a run that it can start. `wants`: rather there than in an engine that only can. `why` is the
    reason that users read, also of a run that goes elsewhere."""

    wants: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """An engine that an agent has opened.

    `offer`: what it can start now, under which name and environment. `closed`: why no run may start there as long as
    the agent lives, "" for one that is open. `claim`: its word on a job that may use accelerators; None: it cannot
    start it. `describe` adds to the agent's description what else the engine decides: its capacity, its queue.
    `written`: further directories that every run needs.
    """

    runtime: Runtime
    stager: Stager
    offer: Callable[[], RuntimeOffer]
    claim: Callable[[TrainingInput, bool], Claim | None] = lambda wanted, _: None if wanted.image_uri else Claim()
    describe: Callable[[AgentInfo], AgentInfo] = lambda info: info
    closed: str = ""
    written: tuple[Path, ...] = ()


def has_run(state_dir: Path, run_id: str, runs: str, prepared: str) -> bool:
    """Whether a state directory has a run, or prepares it. Raises OSError for one that this user may not read."""
    return (state_dir / runs / run_id / "run.json").exists() or (state_dir / prepared / run_id).is_dir()


class Engine(ABC):
    """The methods, none of which an engine may leave out. They raise SettingsRefused."""

    @property
    @abstractmethod
    def name(self) -> RuntimeName:
        """The name in the registry, on the wire and in --runtime."""

    @property
    def spans_hosts(self) -> bool:
        return kind_of(self.name).spans_hosts

    def identity(self, settings: AgentSettings) -> Identity:
        """The agent's identity, the same after a restart. Raises OSError."""
        return identity(settings.state_dir)

    def capacity(self, settings: AgentSettings) -> Capacity:
        """The capacity for all runs, without what only an opened engine knows. Raises BadCapacity."""
        return machine.detect(settings.cpus, settings.memory_gb, settings.tpus)

    @abstractmethod
    def open(self, place: Place) -> AbstractContextManager[OpenEngine]:
        """Open the engine for an agent that runs jobs: its runtime, its stager, its offer."""

    @abstractmethod
    def attach(self, settings: AgentSettings) -> AbstractContextManager[Runtime]:
        """Open the runtime alone, to end what an agent has left. With an engine of a machine nothing is known of the
        settings but the state directory."""

    def where(self, settings: AgentSettings) -> str:  # noqa: ARG002 - one that spans hosts has several
        """The place of what --stop-all has stopped, as the end of a sentence."""
        return "on this machine"

    def examine(self, settings: AgentSettings) -> Iterator[Finding]:  # noqa: ARG002 - not every engine can fail
        """Findings of the doctor about the engine itself: whether it answers, and lets the agent do its work."""
        yield from ()

    @abstractmethod
    def orphans(self, settings: AgentSettings) -> list[Orphan]:
        """Things that the engine has of runs that are gone. Raises EngineUnavailable."""
