"""Selection of the runtime, processes or containers, and of the stager that belongs to it."""

import argparse
import logging
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Literal

from trainyard_agent import capacity
from trainyard_agent.host import machine_id
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.runtimes.docker.engine import Engine, EngineError
from trainyard_agent.runtimes.docker.runtime import DockerRuntime
from trainyard_agent.runtimes.docker.spec import HOST, Owner
from trainyard_agent.runtimes.process.runtime import ProcessRuntime
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import Stager
from trainyard_agent.staging.container_environment import ContainerSettings, ContainerStager
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_agent.staging.python_environment import PackageStager
from trainyard_protocol.runtimes import load_runtimes
from trainyard_protocol.sync import Capacity

ENVIRONMENTS, _STAGING = "environments", "staging"
_ENGINE_TIMEOUT_S, _ENGINE_PAUSE_S = 30.0, 0.5
_EMULATOR = "STORAGE_EMULATOR_HOST"

_log = logging.getLogger(__name__)


class RuntimeRefused(Exception):
    """The agent cannot run with these options; the message says why."""


@dataclass(frozen=True, slots=True)
class SelectedRuntime:
    """The runtime with its stager and capacity. `replica_environment` is set for every replica, valid where it runs."""

    runtime: Runtime
    stager: Stager
    capacity: Capacity
    replica_environment: dict[str, str]


@contextmanager
def open_runtime(
    options: argparse.Namespace, agent_id: str, control_plane: ServerClient
) -> Iterator[SelectedRuntime]:
    """Open the runtime for these options. Raises RuntimeRefused, EngineError, BadCapacity, InvalidArgument."""
    environment = dict(options.replica_env)
    fetcher = PackageFetcher(control_plane, environment.get(_EMULATOR, ""))
    offered = capacity.detect(options.cpus, options.memory_gb)
    with closing(Engine()) as engine:
        if _choose(options, engine) == "process":
            stager = PackageStager(options.state_dir / ENVIRONMENTS, fetcher, options.python)
            yield SelectedRuntime(ProcessRuntime(options.state_dir), stager, offered, environment)
            return
        owner = Owner(agent_id, options.server, str(options.state_dir), machine_id.identity())
        settings = ContainerSettings(
            runtimes=load_runtimes(options.runtimes),
            pull=options.pull,
            job_dir_roots=tuple(options.job_dir_root),
        )
        yield SelectedRuntime(
            runtime=DockerRuntime(options.state_dir, engine, owner, options.pids_limit),
            stager=ContainerStager(options.state_dir / _STAGING, engine, owner, fetcher, settings),
            capacity=capacity.of_engine(offered, engine.about()),
            replica_environment={name: from_containers(value) for name, value in environment.items()},
        )


def from_containers(value: str) -> str:
    """Replace this machine's loopback address in a URL by the name that containers know; else unchanged."""
    return re.sub(r"(?<=://)(127\.0\.0\.1|localhost|\[::1\])(?=[:/]|$)", HOST, value)


def _choose(options: argparse.Namespace, engine: Engine) -> Literal["process", "docker"]:
    """The runtime for `--runtime`. Existing runs decide, so that none is lost."""
    runs: list[Literal["process", "docker"]] = []
    if ProcessRuntime.has_runs(options.state_dir):
        runs.append("process")
    if DockerRuntime.has_runs(options.state_dir):
        runs.append("docker")
    for kind in runs:
        if options.runtime not in ("auto", kind):
            raise RuntimeRefused(
                f"--runtime {options.runtime}: {options.state_dir} still has replicas of the {kind} runtime. "
                f"Wait for their end, or stop them with --stop-all and start an agent with --runtime {kind} "
                "once to report it."
            )
    chosen = runs[0] if runs else options.runtime if options.runtime != "auto" else _detect(options, engine)
    if chosen == "docker":
        _wait_for_engine(engine)
    return chosen


def _detect(options: argparse.Namespace, engine: Engine) -> Literal["process", "docker"]:
    """Containers if there is an engine with the default runtime image, which package jobs need; else processes."""
    try:
        engine.about()
        image = load_runtimes(options.runtimes).image_for("", gpus=False)
        if engine.image(image) is not None:
            return "docker"
    except EngineError as error:
        _log.info("jobs run as processes: %s", error)
    else:
        _log.info(
            "the container engine has no image %s: jobs run as processes until `trainyard runtimes build` has "
            "built it and the agent was restarted",
            image,
        )
    return "process"


def _wait_for_engine(engine: Engine) -> None:
    """Wait for an engine that starts with the machine. Raises RuntimeRefused."""
    give_up_at = time.monotonic() + _ENGINE_TIMEOUT_S
    warned = False
    while True:
        try:
            engine.about()
        except EngineError as error:
            if time.monotonic() > give_up_at:
                raise RuntimeRefused(f"--runtime docker: {error}.") from error
            if not warned:
                _log.warning("%s; waiting for it", error)
            warned = True
            time.sleep(_ENGINE_PAUSE_S)
        else:
            return
