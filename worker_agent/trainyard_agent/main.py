"""The command `python -m trainyard_agent`, and the composition root of the agent."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trainyard_agent import capacity, runtime_selection
from trainyard_agent.agent import Agent
from trainyard_agent.engines.docker.engine import Engine, EngineError
from trainyard_agent.engines.docker.runtime import DockerRuntime
from trainyard_agent.engines.docker.spec import Owner
from trainyard_agent.engines.process.runtime import ProcessRuntime
from trainyard_agent.host.clock import SystemClock
from trainyard_agent.host.files import try_lock
from trainyard_agent.host.identity import identity
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.host.process_tags import StillAlive
from trainyard_agent.joining import check_server
from trainyard_agent.lease import lease_file, watchdog_files
from trainyard_agent.lease.lease import Lease
from trainyard_agent.monitoring.disk_watch import DiskWatch
from trainyard_agent.options import STOP_ALL_GRACE_S, parse
from trainyard_agent.platforms import PLATFORMS
from trainyard_agent.runtime_selection import Exclusion, RuntimeRefused
from trainyard_agent.runtimes.base import Handle
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.environments.installer_process import kill_orphaned_installers
from trainyard_protocol import __version__
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.net.private_files import make_private, read_token_file
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import AgentInfo

_LOCK_TIMEOUT_S = 5.0  # an agent that is shutting down still holds the lock
_KILL_TIMEOUT_S = 30.0  # for processes to die of SIGKILL and logs to be complete
_PAUSE_S = 0.02
_UMASK = 0o022  # users of jobs pass through directories of ours; what is private is closed by its own mode

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    platform = PLATFORMS[options.runtime]
    try:
        if options.doctor:
            print(json.dumps([finding.model_dump() for finding in platform.examine(options)]))
            return 0
        if options.check:
            print(asyncio.run(_check(options)))
            return 0
        if os.geteuid() == 0 and not options.one_user:
            os.umask(_UMASK)
        if closed := make_private(options.state_dir, may_pass=True):
            logger.warning("The state directory %s", closed)
        with _agent_lock(options.state_dir):
            if options.stop_all:
                stop_all(options.state_dir, options.grace)
                if stopped := platform.stop_all(options):
                    print(stopped)
            else:
                asyncio.run(_serve(options))
    except (RuntimeRefused, capacity.BadCapacity, EngineError, TrainyardError, StillAlive, OSError) as error:
        print(f"trainyard_agent: {error}", file=sys.stderr)
        return 1
    return 0


def stop_all(state_dir: Path, grace_s: float = STOP_ALL_GRACE_S) -> None:
    """Stop the watchdog, remove the lease, stop every replica under this state directory and wait for their end.

    The next agent reports their exits with the reason HOST_SHUTDOWN. Raises StillAlive if a process survives SIGKILL,
    EngineError if containers may run and the engine does not answer.
    """
    watchdog_files.stop_watchdog(state_dir)
    _stop_everything(state_dir, lambda _: grace_s, Reason.HOST_SHUTDOWN)


def stop_expired(state_dir: Path) -> None:
    """Stop every replica after the lease has expired, for the watchdog.

    As `stop_all`, with the reason HOST_LOST and what the lease leaves of each grace. Raises RuntimeRefused if an agent
    runs.
    """
    with _agent_lock(state_dir):
        lease = Lease(SystemClock(), state_dir / lease_file.NAME)
        _stop_everything(state_dir, lambda handle: lease.grace_left(handle.grace_s), Reason.HOST_LOST)


def _stop_everything(state_dir: Path, grace_of: Callable[[Handle], float], reason: Reason) -> None:
    """Stop the runs of every runtime at once, so that each ends within its own grace. An engine that does not answer
    delays no process: it is raised when they have ended."""
    users = JobUsers(state_dir)
    kill_orphaned_installers(state_dir / runtime_selection.ENVIRONMENTS, users)
    processes = ProcessRuntime(state_dir)
    deadlines = _stop_runs(processes, grace_of, reason)
    try:
        if DockerRuntime.has_runs(state_dir):
            _stop_containers(state_dir, grace_of, reason)
    finally:
        _wait_for_ends(processes, deadlines)
        users.kill_all_processes()


def _stop_containers(state_dir: Path, grace_of: Callable[[Handle], float], reason: Reason) -> None:
    with contextlib.closing(Engine()) as engine:
        engine.about()
        docker = DockerRuntime(state_dir, engine, Owner(identity(state_dir).agent_id))
        with contextlib.closing(docker):
            _wait_for_ends(docker, _stop_runs(docker, grace_of, reason))


def _stop_runs(
    runtime: ProcessRuntime | DockerRuntime, grace_of: Callable[[Handle], float], reason: Reason
) -> dict[str, float]:
    """Stop every run. Returns when (monotonic) each must have ended."""
    deadlines = {}
    for handle in runtime.recover():
        grace_s = grace_of(handle)
        runtime.stop(handle.run_id, grace_s, reason)
        deadlines[handle.run_id] = time.monotonic() + grace_s + _KILL_TIMEOUT_S
    return deadlines


def _wait_for_ends(runtime: ProcessRuntime | DockerRuntime, deadlines: Mapping[str, float]) -> None:
    """Raises StillAlive."""
    give_up_at = max(deadlines.values(), default=0.0)
    while alive := [run_id for run_id in deadlines if not runtime.has_ended(run_id)]:
        if time.monotonic() > give_up_at:
            raise StillAlive(f"the replicas of the runs {', '.join(alive)} survive SIGKILL")
        time.sleep(_PAUSE_S)


async def _check(options: argparse.Namespace) -> str:
    """Whether the agent could join, as a sentence. Raises TrainyardError, RuntimeRefused, BadCapacity."""
    PLATFORMS[options.runtime].capacity(options)
    async with ServerClient(options.server, _token(options.token_file), "", options.ca_file) as server:
        return await check_server(server, __version__)


async def _serve(options: argparse.Namespace) -> None:
    """Run the agent until SIGTERM or SIGINT. Replicas keep running."""
    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await _run_agent(options)


async def _run_agent(options: argparse.Namespace) -> None:
    """Raises RuntimeRefused once another agent has taken its place."""
    clock, platform = SystemClock(), PLATFORMS[options.runtime]
    me = platform.identity(options)
    disks = DiskWatch(_written(options), int(options.disk_reserve_gb * 1e9))
    async with ServerClient(
        options.server, _token(options.token_file), me.key, options.ca_file
    ) as control_plane:
        info = AgentInfo(
            agent_id=me.agent_id,
            name=options.name or socket.gethostname(),
            host=socket.gethostname(),
            version=__version__,
            runtime="process",
            capacity_mode=options.capacity,
            runs_images=False,
            capacity=platform.capacity(options),
            kind=platform.kind,
        )
        with platform.open(options, me.agent_id, control_plane) as opened:
            await opened.exclusion.acquire()
            await asyncio.to_thread(disks.start)
            agent = Agent(
                opened.runtime,
                control_plane,
                opened.stager,
                clock,
                lambda: opened.info(info.model_copy(update={"disks": disks.disks})),
                platform.lease(options, clock),
                options.usage_every,
                options.start_deadline,
                disks,
            )
            logger.info(
                "agent %s (--runtime %s) connects to %s", me.agent_id, options.runtime, options.server
            )
            try:
                await _run_until_lost(agent, opened.exclusion)
            finally:
                disks.close()
                # a start that is going on in a thread needs the runtime to its end
                await asyncio.get_running_loop().shutdown_default_executor()


def _written(options: argparse.Namespace) -> list[Path]:
    """The directories that every run needs. The job-dirs of one user may be in any of many places: of these a disk
    counts once a run has failed of it."""
    shared = [options.shared_dir] if options.shared_dir is not None else []
    roots = [] if options.one_user else [root.absolute() for root in options.job_dir_root]
    return [options.state_dir, *shared, *roots]


async def _run_until_lost(agent: Agent, exclusion: Exclusion) -> None:
    running, lost = asyncio.create_task(agent.run()), asyncio.create_task(exclusion.lost())
    try:
        await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (running, lost):
            task.cancel()
        await asyncio.gather(running, lost, return_exceptions=True)
    if not running.cancelled():
        running.result()
    else:
        raise RuntimeRefused(f"{lost.result()} has taken the place of this agent. What runs goes on.")


def _token(path: Path) -> str:
    """The token of a file. Raises InvalidArgument, and RuntimeRefused if others can use it."""
    file = read_token_file(path)
    if file.exposure is not None and file.exposure.is_grave:
        raise RuntimeRefused(f"--token-file: {file.exposure.message}")
    if file.exposure is not None:
        logger.warning("--token-file: %s", file.exposure.message)
    return file.token


@contextlib.contextmanager
def _agent_lock(state_dir: Path) -> Iterator[None]:
    """Lock the state directory: two agents on it would start the same replicas twice."""
    path = state_dir / watchdog_files.AGENT_LOCK
    give_up_at = time.monotonic() + _LOCK_TIMEOUT_S
    while (lock := try_lock(path)) is None:
        if time.monotonic() > give_up_at:
            owner = path.read_text(encoding="ascii").strip()
            raise RuntimeRefused(
                f"another worker agent (process {owner or 'unknown'}) uses the state directory {state_dir}: "
                "stop it first, or give this one its own --state-dir."
            )
        time.sleep(_PAUSE_S)
    try:
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)
