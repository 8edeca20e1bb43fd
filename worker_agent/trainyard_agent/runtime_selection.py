"""All runtimes of the machine, each with the stager that belongs to it, and what the agent offers of them.

`--runtime` narrows what new runs may use. A runtime that still holds runs is always opened, so that none is lost.
"""

import argparse
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent import capacity
from trainyard_agent.control.runtime_choice import Machine, choose, default_runtime
from trainyard_agent.host import machine_id
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.runtimes.docker.engine import Engine
from trainyard_agent.runtimes.docker.probe import ANSWER_S, EngineProbe, EngineState
from trainyard_agent.runtimes.docker.runtime import DockerRuntime
from trainyard_agent.runtimes.docker.spec import HOST, Owner
from trainyard_agent.runtimes.process.runtime import ProcessRuntime
from trainyard_agent.runtimes.runtime_set import Choices, RuntimeSet
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import Stager
from trainyard_agent.staging.container_environment import ContainerSettings, ContainerStager
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_agent.staging.python_environment import PackageStager
from trainyard_agent.staging.stager_set import StagerSet
from trainyard_protocol.gcs import EMULATOR
from trainyard_protocol.runtimes import Runtimes, load_runtimes
from trainyard_protocol.sync import AgentInfo, RuntimeName, RuntimeOffer

ENVIRONMENTS, _STAGING = "environments", "staging"
_ENGINE_TIMEOUT_S, _ENGINE_PAUSE_S = 30.0, 0.5
_OFFERED: Mapping[str, frozenset[RuntimeName]] = {
    "auto": frozenset({"process", "docker"}),
    "process": frozenset({"process"}),
    "docker": frozenset({"docker"}),
}
"""The runtimes of new runs, by `--runtime`."""

_log = logging.getLogger(__name__)


class RuntimeRefused(Exception):
    """The agent cannot run with these options; the message says why."""


@dataclass(frozen=True, slots=True)
class OpenRuntimes:
    """The runtimes as one, with their stager. `info` adds to an agent's own fields what it offers now."""

    runtime: Runtime
    stager: Stager
    info: Callable[[AgentInfo], AgentInfo]


@contextmanager
def open_runtimes(
    options: argparse.Namespace, agent_id: str, control_plane: ServerClient
) -> Iterator[OpenRuntimes]:
    """Open the runtimes for these options. Raises RuntimeRefused, InvalidArgument."""
    state_dir: Path = options.state_dir
    offered, table = _OFFERED[options.runtime], load_runtimes(options.runtimes)
    environment = dict(options.replica_env)
    fetcher = PackageFetcher(control_plane, environment.get(EMULATOR, ""))
    with (
        closing(Engine()) as engine,
        closing(Engine(timeout_s=ANSWER_S)) as polled,
        closing(EngineProbe(polled, _built_images(table))) as probe,
    ):
        if "docker" in offered:
            _poll_first(probe, demanded=offered == {"docker"})
            probe.start()

        def machine() -> Machine:
            state = probe.state
            return Machine(offered, table, state.info is not None, state.images)

        runtimes: dict[RuntimeName, Runtime] = {}
        stagers: dict[RuntimeName, Stager] = {}
        if "process" in offered or ProcessRuntime.has_runs(state_dir):
            runtimes["process"] = ProcessRuntime(state_dir)
            stagers["process"] = PackageStager(state_dir / ENVIRONMENTS, fetcher, options.python)
        if "docker" in offered or DockerRuntime.has_runs(state_dir):
            owner = Owner(agent_id, options.server, str(state_dir), machine_id.identity())
            settings = ContainerSettings(table, options.pull, job_dir_roots=tuple(options.job_dir_root))
            runtimes["docker"] = DockerRuntime(state_dir, engine, owner, options.pids_limit, probe)
            stagers["docker"] = ContainerStager(state_dir / _STAGING, engine, owner, fetcher, settings)
        choices = Choices(lambda order: choose(order, machine()))
        yield OpenRuntimes(
            RuntimeSet(runtimes, choices),
            StagerSet(stagers, choices),
            lambda info: offer(info, machine(), probe.state, environment, runtimes.keys()),
        )


def offer(
    info: AgentInfo,
    machine: Machine,
    engine: EngineState,
    environment: Mapping[str, str],
    opened: Set[RuntimeName],
) -> AgentInfo:
    """The agent with what it offers now. `info.capacity` is the machine's: an engine may have a part of it, which is
    then the capacity for all runs. Pure."""
    offers = {
        name: RuntimeOffer(
            name=name,
            replica_environment=_environment_in(name, environment),
            about=engine.about if name == "docker" else "",
            problem=engine.problem if name == "docker" else "",
            retiring=name not in machine.offered,
        )
        for name in sorted(opened, key=("process", "docker").index)
    }
    docker, runtime = offers.get("docker"), default_runtime(machine)
    containers = docker is not None and not docker.retiring
    here = info.capacity
    return info.model_copy(
        update={
            "runtime": runtime,
            "runtimes": tuple(offers.values()),
            "replica_environment": _environment_in(runtime, environment),
            "runs_images": containers and not engine.problem,
            "capacity": capacity.of_engine(here, engine.info) if containers and engine.info else here,
        }
    )


def from_containers(value: str) -> str:
    """Replace this machine's loopback address in a URL by the name that containers know; else unchanged."""
    return re.sub(r"(?<=://)(127\.0\.0\.1|localhost|\[::1\])(?=[:/]|$)", HOST, value)


def _environment_in(runtime: RuntimeName, environment: Mapping[str, str]) -> dict[str, str]:
    if runtime != "docker":
        return dict(environment)
    return {name: from_containers(value) for name, value in environment.items()}


def _built_images(table: Runtimes) -> frozenset[str]:
    """Images whose presence decides where a job runs: of versions with a line of their own, if they are built."""
    own = (table.own_image(version, gpus) for version in table.versions for gpus in (False, True))
    return frozenset(image.image for image in own if image is not None and image.dockerfile)


def _poll_first(probe: EngineProbe, demanded: bool) -> None:
    """Ask the engine once; or wait for one that starts with the machine, and raise RuntimeRefused without."""
    give_up_at = time.monotonic() + _ENGINE_TIMEOUT_S
    while (problem := probe.poll().problem) and demanded:
        if time.monotonic() > give_up_at:
            raise RuntimeRefused(f"--runtime docker: {problem}. Start Docker, or use --runtime auto.")
        time.sleep(_ENGINE_PAUSE_S)
