"""All runtimes of the machine, each with the stager that belongs to it, and what the agent offers of them.

`--runtime` narrows what new runs may use. Processes are for the jobs of one user (`--one-user`), who is the agent's;
else each run needs a user of its own, which only root can give it. A runtime that still holds runs is always opened, so
that none is lost.
"""

import argparse
import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trainyard_agent import capacity
from trainyard_agent.control.runtime_choice import Machine, choose, default_runtime
from trainyard_agent.engines.docker.engine import Engine, EngineError
from trainyard_agent.engines.docker.network.network_policy import endpoints_of
from trainyard_agent.engines.docker.network.networks import Networks
from trainyard_agent.engines.docker.probe import ANSWER_S, EngineProbe, EngineState
from trainyard_agent.engines.docker.runtime import DockerRuntime
from trainyard_agent.engines.docker.spec import HOST, STORAGE_ROOTS, Owner
from trainyard_agent.engines.docker.stager import ContainerSettings, ContainerStager, package_index
from trainyard_agent.engines.docker.users import ContainerUsers
from trainyard_agent.engines.process.runtime import ProcessRuntime
from trainyard_agent.host import machine_id
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.runtimes.installing import InstallLimits
from trainyard_agent.runtimes.runtime_set import Choices, RuntimeSet
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import Stager, StagingFailed
from trainyard_agent.staging.environments import user_check
from trainyard_agent.staging.environments.installer_process import pip_directory
from trainyard_agent.staging.environments.python_environment import PackageStager
from trainyard_agent.staging.job_dirs import JobDirs
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_agent.staging.stager_set import StagerSet
from trainyard_protocol.job.runtimes import Runtimes, load_runtimes
from trainyard_protocol.net.gcs import EMULATOR, FRONT_ROOTS
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName, RuntimeOffer

ENVIRONMENTS, STAGING = "environments", "staging"
_ENGINE_TIMEOUT_S, _ENGINE_PAUSE_S = 30.0, 0.5
ADMITTED: Mapping[str, frozenset[RuntimeName]] = {
    "auto": frozenset({"process", "docker"}),
    "process": frozenset({"process"}),
    "docker": frozenset({"docker"}),
}
"""The runtimes of new runs, by `--runtime`."""

_NO_PROCESSES = "package jobs run as processes only where its agent is root or has --one-user"

_log = logging.getLogger(__name__)


class RuntimeRefused(Exception):
    """The agent cannot run with these options; the message says why."""


class Exclusion(Protocol):
    """Of several agents with one identity, the one that may act."""

    async def acquire(self) -> None:
        """Return once this agent may act."""
        ...

    async def lost(self) -> str:
        """Keep it. Return once another agent has it, with who that is."""
        ...


class ByLock:
    """The lock of the state directory, which this process holds to its end."""

    async def acquire(self) -> None:
        return

    async def lost(self) -> str:
        await asyncio.Event().wait()
        return ""


@dataclass(frozen=True, slots=True)
class OpenRuntimes:
    """The runtimes as one, with their stager. `info` adds to an agent's own fields what it offers now."""

    runtime: Runtime
    stager: Stager
    info: Callable[[AgentInfo], AgentInfo]
    exclusion: Exclusion = field(default_factory=ByLock)


@contextmanager
def open_runtimes(
    options: argparse.Namespace, agent_id: str, control_plane: ServerClient
) -> Iterator[OpenRuntimes]:
    """Open the runtimes for these options. Raises RuntimeRefused, InvalidArgument."""
    state_dir: Path = options.state_dir
    users = _job_users(options)
    no_processes = _why_no_processes(options, users)
    offered, table = offered_runtimes(options.runtime, no_processes), load_runtimes(options.runtimes)
    if no_processes:
        _log.warning("%s; they run in containers", no_processes)
    environment = dict(options.replica_env)
    fetcher = PackageFetcher(control_plane, environment.get(EMULATOR, ""))
    with (
        closing(Engine()) as engine,
        closing(Engine(timeout_s=ANSWER_S)) as polled,
        closing(EngineProbe(polled, _built_images(table), int(options.disk_reserve_gb * 1e9))) as probe,
    ):
        if "docker" in offered:
            _poll_first(probe, demanded=options.runtime == "docker")
            probe.start()

        def machine() -> Machine:
            state = probe.state
            return Machine(offered, table, state.info is not None, state.images, no_processes)

        parts = _Parts(options, agent_id, offered, table, users, fetcher, engine, probe)
        built = {
            name: one.build(parts)
            for name, one in RUNTIMES.items()
            if name in offered or one.has_runs(state_dir)
        }
        runtimes: dict[RuntimeName, Runtime] = {name: runtime for name, (runtime, _) in built.items()}
        stagers: dict[RuntimeName, Stager] = {name: stager for name, (_, stager) in built.items()}
        choices = Choices(lambda order: choose(order, machine()))
        yield OpenRuntimes(
            RuntimeSet(runtimes, choices),
            StagerSet(stagers, choices),
            lambda info: offer(info, machine(), probe.state, environment, runtimes.keys()),
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts that the runtimes of a machine are built from."""

    options: argparse.Namespace
    agent_id: str
    offered: frozenset[RuntimeName]
    table: Runtimes
    users: JobUsers
    fetcher: PackageFetcher
    engine: Engine
    probe: EngineProbe


@dataclass(frozen=True, slots=True)
class MachineRuntime:
    """A runtime of a machine: whether a state directory has runs of it, and how it is built with its stager."""

    has_runs: Callable[[Path], bool]
    build: Callable[[_Parts], tuple[Runtime, Stager]]


def _processes(parts: _Parts) -> tuple[Runtime, Stager]:
    options, state_dir = parts.options, parts.options.state_dir
    runtime = ProcessRuntime(state_dir, parts.users, options.pids_limit)
    root = state_dir / ENVIRONMENTS
    return runtime, PackageStager(root, parts.fetcher, options.python, parts.users, parts.table)


def _containers(parts: _Parts) -> tuple[Runtime, Stager]:
    options, state_dir, engine = parts.options, parts.options.state_dir, parts.engine
    owner = Owner(parts.agent_id, options.server, str(state_dir), machine_id.identity())
    settings = ContainerSettings(
        parts.table,
        options.pull,
        job_dirs=JobDirs(tuple(options.job_dir_root), options.one_user),
        users=ContainerUsers(options.container_user, options.one_user),
        limits=install_limits(options),
    )
    networks = _networks(options, engine, owner)
    if "docker" in parts.offered:
        _require_policy(networks, options.network, parts.probe.state)
    disk_bytes = int(options.disk_gb * 1e9)
    storage_roots = dict(options.replica_env).get(FRONT_ROOTS, "")
    return (
        DockerRuntime(
            state_dir, engine, owner, options.pids_limit, parts.probe, networks, disk_bytes, storage_roots
        ),
        ContainerStager(state_dir / STAGING, engine, owner, parts.fetcher, settings, networks),
    )


RUNTIMES: Mapping[RuntimeName, MachineRuntime] = {
    "process": MachineRuntime(ProcessRuntime.has_runs, _processes),
    "docker": MachineRuntime(DockerRuntime.has_runs, _containers),
}
"""The runtimes of a machine. Contract tests run on each."""


def offered_runtimes(admitted: str, no_processes: str) -> frozenset[RuntimeName]:
    """The runtimes of new runs, of those that `--runtime` admits. Raises RuntimeRefused if none is left. Pure."""
    if admitted == "process" and no_processes:
        raise RuntimeRefused(
            f"--runtime process: {no_processes}. Add --one-user if all jobs are this user's own, or use "
            "--runtime docker."
        )
    return ADMITTED[admitted] - ({"process"} if no_processes else set())


def _job_users(options: argparse.Namespace) -> JobUsers:
    """The users of runs: new ones for new runs where the agent can give them, and must."""
    own = os.geteuid() == 0 and not options.one_user and options.runtime != "docker"
    users = JobUsers(options.state_dir, options.job_uids if own else ())
    if own:
        users.open()
    return users


def _why_no_processes(options: argparse.Namespace, users: JobUsers) -> str:
    """The reason why package jobs may not run as processes, although `--runtime` admits it; "" if they may."""
    if options.one_user or options.runtime == "docker":
        return ""
    if os.geteuid() != 0:
        return _NO_PROCESSES
    with closing(Engine()) as engine:
        socket = Path(engine.url.removeprefix("unix://"))
    secret = (options.token_file.absolute(), options.state_dir / "agent.json", socket)
    try:
        problem = user_check.problem(
            users.first(), options.python, options.state_dir, [Path(pip_directory())], secret
        )
    except (OSError, StagingFailed) as error:
        problem = str(error)
    return (
        f"package jobs cannot run as processes, each run as a user of its own: {problem}" if problem else ""
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
    problems: Mapping[RuntimeName, str] = {"process": machine.no_processes, "docker": engine.problem}
    offers = {
        name: RuntimeOffer(
            name=name,
            replica_environment=_environment_in(name, environment),
            about=engine.about if name == "docker" else "",
            problem=problem,
            retiring=name not in machine.offered,
        )
        for name, problem in problems.items()
        if name in opened or (name not in machine.offered and problem)
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
    seen = {name: from_containers(value) for name, value in environment.items()}
    return {**seen, FRONT_ROOTS: STORAGE_ROOTS} if FRONT_ROOTS in seen else seen


def install_limits(options: argparse.Namespace) -> InstallLimits:
    """The limits of an installation, by the options."""
    return InstallLimits(
        seconds=options.install_timeout,
        memory_bytes=int(options.install_memory_gb * 1e9),
        cpus=options.install_cpus,
        disk_bytes=int(options.disk_gb * 1e9),
    )


def _networks(options: argparse.Namespace, engine: Engine, owner: Owner) -> Networks:
    given = _environment_in("docker", dict(options.replica_env)).values()
    allowed = [*options.allow_address, *endpoints_of(given)]
    index = [*options.allow_address, *package_index(os.environ)]
    return Networks(engine, owner, options.network, allowed, index)


def _require_policy(networks: Networks, policy: str, engine: EngineState) -> None:
    """Raises RuntimeRefused if the network policy cannot be enforced. With an engine that does not answer yet, each run
    fails that it cannot be enforced for."""
    if engine.info is None:
        return
    try:
        networks.check()
    except EngineError as error:
        raise RuntimeRefused(
            f"--network {policy} cannot be enforced: {error}. It takes root (CAP_NET_ADMIN), iptables, and the network "
            "namespace of the container engine. With --network all, containers of jobs reach every service of this "
            "machine that listens on more than loopback."
        ) from error


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
