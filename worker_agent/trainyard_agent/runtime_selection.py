"""Where replicas run, processes or containers: everything that differs between the two, put together."""

import argparse
import logging
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Literal

from trainyard_agent import capacity
from trainyard_agent.host import machine_id as here
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.runtimes.docker.engine import Engine, EngineError
from trainyard_agent.runtimes.docker.runtime import DockerRuntime
from trainyard_agent.runtimes.docker.spec import HOST, Owner
from trainyard_agent.runtimes.process.runtime import ProcessRuntime
from trainyard_agent.server_client import ControlPlane
from trainyard_agent.staging.base import Stager
from trainyard_agent.staging.container_environment import ContainerSettings, ContainerStager
from trainyard_agent.staging.package_fetcher import Fetcher
from trainyard_agent.staging.python_environment import PackageStager
from trainyard_protocol.runtimes import load_runtimes
from trainyard_protocol.sync import Capacity

ENVIRONMENTS, _STAGING = "environments", "staging"
_ENGINE_PATIENCE_S, _ENGINE_PAUSE_S = 30.0, 0.5
_EMULATOR = "STORAGE_EMULATOR_HOST"

_log = logging.getLogger(__name__)


class Refused(Exception):
    """The agent cannot work with these options here; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """`replica_environment` is what every replica is given, as it is right where they run."""

    runtime: Runtime
    stager: Stager
    capacity: Capacity
    replica_environment: dict[str, str]


@contextmanager
def opened(options: argparse.Namespace, agent_id: str, control_plane: ControlPlane) -> Iterator[Place]:
    """Raises Refused, EngineError, BadCapacity, InvalidArgument."""
    environment = dict(options.replica_env)
    fetcher = Fetcher(control_plane, environment.get(_EMULATOR, ""))
    offered = capacity.detect(options.cpus, options.memory_gb)
    with closing(Engine()) as engine:
        if _chosen(options, engine) == "process":
            stager = PackageStager(options.state_dir / ENVIRONMENTS, fetcher, options.python)
            yield Place(ProcessRuntime(options.state_dir), stager, offered, environment)
            return
        owner = Owner(agent_id, options.server, str(options.state_dir), here.identity())
        settings = ContainerSettings(
            runtimes=load_runtimes(options.runtimes),
            pull=options.pull,
            job_dir_roots=tuple(options.job_dir_root),
        )
        yield Place(
            runtime=DockerRuntime(options.state_dir, engine, owner, options.pids_limit),
            stager=ContainerStager(options.state_dir / _STAGING, engine, owner, fetcher, settings),
            capacity=capacity.of_engine(offered, engine.about()),
            replica_environment={name: from_containers(value) for name, value in environment.items()},
        )


def from_containers(value: str) -> str:
    """The address of a service of this very machine, as containers on it reach it; anything else as it is."""
    return re.sub(r"(?<=://)(127\.0\.0\.1|localhost|\[::1\])(?=[:/]|$)", HOST, value)


def _chosen(options: argparse.Namespace, engine: Engine) -> Literal["process", "docker"]:
    """What `--runtime` comes to. What runs already decides: nothing that runs may be lost sight of."""
    runs: list[Literal["process", "docker"]] = []
    if ProcessRuntime.has_runs(options.state_dir):
        runs.append("process")
    if DockerRuntime.has_runs(options.state_dir):
        runs.append("docker")
    for kind in runs:
        if options.runtime not in ("auto", kind):
            raise Refused(
                f"--runtime {options.runtime}: replicas of the {kind} runtime are still kept in "
                f"{options.state_dir}. Let them end, or end them with --stop-all and let an agent with "
                f"--runtime {kind} report it."
            )
    chosen = runs[0] if runs else options.runtime if options.runtime != "auto" else _best(options, engine)
    if chosen == "docker":
        _wait_for(engine)
    return chosen


def _best(options: argparse.Namespace, engine: Engine) -> Literal["process", "docker"]:
    """Containers where the engine and the default runtime image are there, so that every job finds what it
    needs; else processes."""
    try:
        engine.about()
        image = load_runtimes(options.runtimes).image_for("", gpus=False)
        if engine.image(image) is not None:
            return "docker"
    except EngineError as error:
        _log.info("jobs run as processes: %s", error)
    else:
        _log.info(
            "a container engine answers here, and has no image %s: jobs run as processes until "
            "`trainyard runtimes build` has made it and the agent is started again",
            image,
        )
    return "process"


def _wait_for(engine: Engine) -> None:
    """An engine that starts with the machine may take a moment. Raises Refused."""
    give_up_at = time.monotonic() + _ENGINE_PATIENCE_S
    said = False
    while True:
        try:
            engine.about()
        except EngineError as error:
            if time.monotonic() > give_up_at:
                raise Refused(f"--runtime docker: {error}.") from error
            if not said:
                _log.warning("%s; waiting for it", error)
            said = True
            time.sleep(_ENGINE_PAUSE_S)
        else:
            return
