"""The command `python -m trainyard_agent`, and the composition root of the agent."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from trainyard_agent.agent import Agent
from trainyard_agent.agent_parts import AgentParts
from trainyard_agent.control.launch import TrackingAddresses
from trainyard_agent.engines import registry
from trainyard_agent.engines.capacity import BadCapacity
from trainyard_agent.engines.contract import Engine, SettingsRefused
from trainyard_agent.engines.examining import orphan_findings
from trainyard_agent.engines.stopping import stop_runs
from trainyard_agent.host.clock import Clock, SystemClock
from trainyard_agent.host.files import try_lock
from trainyard_agent.host.process_tags import StillAlive
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.joining import check_server
from trainyard_agent.lease import lease_file, watchdog_files
from trainyard_agent.lease.lease import Lease
from trainyard_agent.lease.majority import Majority
from trainyard_agent.monitoring.device_errors import DeviceErrors
from trainyard_agent.monitoring.disk_watch import DiskWatch
from trainyard_agent.opening import open_engines
from trainyard_agent.peers.members import PeerMembers
from trainyard_agent.peers.reach import Reach
from trainyard_agent.runtimes.base import EngineUnavailable
from trainyard_agent.server_client import ServerClient
from trainyard_agent.settings import AgentSettings, Command, parse
from trainyard_agent.staging.mounts import AgentMounts
from trainyard_protocol import __version__, service_log
from trainyard_protocol.answers.health import Finding
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.job.mounts import load_mounts
from trainyard_protocol.job.resources import is_tpu
from trainyard_protocol.job.runtimes import load_runtimes
from trainyard_protocol.net.private_files import make_private, read_token_file
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import CLUSTER, HOST, AgentInfo

_LOCK_TIMEOUT_S = 5.0  # an agent that is shutting down still holds the lock
_PAUSE_S = 0.02
_UMASK = 0o022  # users of jobs pass through directories of ours; what is private is closed by its own mode

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    settings, command = parse(argv, registry.kinds())
    logging.getLogger().setLevel(logging.INFO)
    service_log.set_up("json" if settings.log_format == "json" else "text")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    try:
        if command.doctor:
            print(json.dumps([finding.model_dump() for finding in examine(settings)]))
        elif command.check:
            print(asyncio.run(_check(settings)))
        else:
            _work(settings, command)
    except (SettingsRefused, EngineUnavailable, BadCapacity, TrainyardError, StillAlive, OSError) as error:
        print(f"trainyard_agent: {_words(error)}", file=sys.stderr)
        return 1
    return 0


def _words(error: Exception) -> str:
    """The error as a sentence, with the file that it is of."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} cannot be used: {error.strerror}."
    return str(error)


def _work(settings: AgentSettings, command: Command) -> None:
    """Do what takes the lock of the state directory."""
    if os.geteuid() == 0 and not settings.one_user:
        os.umask(_UMASK)
    if closed := make_private(settings.state_dir, may_pass=True):
        logger.warning("The state directory %s", closed)
    with _agent_lock(settings.state_dir):
        if command.stop_all:
            stop_all(settings, command.grace)
        else:
            asyncio.run(_serve(settings))


def examine(settings: AgentSettings) -> list[Finding]:
    """Findings of the doctor, which works beside a running agent: about each engine of the machine, or the one that
    spans hosts, about what is left of runs, and about mounts."""
    engines = _engines(settings)
    findings = [finding for engine in engines for finding in engine.examine(settings)]
    findings += orphan_findings([partial(engine.orphans, settings) for engine in engines], settings.state_dir)
    if settings.mounts is not None:
        findings += AgentMounts(load_mounts(settings.mounts), _of_pods(settings)).findings()
    return findings


def stop_all(settings: AgentSettings, grace_s: float) -> None:
    """Stop the watchdog, remove the lease, stop every replica of this agent and wait for their end.

    The next agent reports their exits with the reason HOST_SHUTDOWN. Raises StillAlive if a process survives SIGKILL,
    EngineUnavailable if replicas may run and their engine does not answer.
    """
    watchdog_files.stop_watchdog(settings.state_dir)
    engines = _with_runs(settings)
    counts = stop_runs(engines, settings, lambda _: grace_s, Reason.HOST_SHUTDOWN)
    for engine, count in counts.items():
        if engine.spans_hosts:
            print(f"Stopped {count} replicas {engine.where(settings)}.")


def stop_expired(state_dir: Path) -> None:
    """Stop every replica after the lease has expired, for the watchdog.

    As `stop_all`, with the reason HOST_LOST and what the lease leaves of each grace. Raises SettingsRefused if an agent
    runs.
    """
    with _agent_lock(state_dir):
        lease = Lease(SystemClock(), state_dir / lease_file.NAME)
        settings = AgentSettings(state_dir=state_dir)
        engines = _with_runs(settings)
        stop_runs(engines, settings, lambda handle: lease.grace_left(handle.grace_s), Reason.HOST_LOST)


def _engines(settings: AgentSettings) -> list[Engine]:
    """The engine that spans hosts, or every one of the machine, whichever of them admits new runs."""
    chosen = registry.chosen_engines(settings.runtime)
    return chosen if chosen[0].spans_hosts else registry.machine_engines()


def _with_runs(settings: AgentSettings) -> list[Engine]:
    """Those that may have runs."""
    return [
        engine
        for engine in _engines(settings)
        if engine.spans_hosts or registry.kind_of(engine.name).may_have_runs(settings.state_dir)
    ]


def _mounts(settings: AgentSettings) -> AgentMounts:
    """The directories that jobs may name. Raises InvalidArgument."""
    return AgentMounts.open(settings.mounts, _of_pods(settings))


def _of_pods(settings: AgentSettings) -> bool:
    """Whether replicas are pods, whose mounts are volumes."""
    return registry.kind_of(registry.chosen_engines(settings.runtime)[0].name).has_pods


async def _check(settings: AgentSettings) -> str:
    """Whether the agent could join, as a sentence. Raises TrainyardError, SettingsRefused, BadCapacity."""
    registry.chosen_engines(settings.runtime)[0].capacity(settings)
    _mounts(settings)
    token, certificates = _token(settings.token_file), settings.certificates
    async with ServerClient(settings.server, token, "", certificates) as server:
        return await check_server(server, __version__)


async def _serve(settings: AgentSettings) -> None:
    """Run the agent until SIGTERM or SIGINT. Replicas keep running."""
    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await _run_agent(settings)


async def _run_agent(settings: AgentSettings) -> None:
    clock, engine = SystemClock(), registry.chosen_engines(settings.runtime)[0]
    mounts = _mounts(settings)
    me = engine.identity(settings)
    token, certificates = _token(settings.token_file), settings.certificates
    async with ServerClient(settings.server, token, me.key, certificates) as control_plane:
        info = AgentInfo(
            agent_id=me.agent_id,
            name=settings.name or socket.gethostname(),
            host=socket.gethostname(),
            version=__version__,
            runtime=engine.name,
            capacity_mode=settings.capacity,
            runs_images=False,
            capacity=engine.capacity(settings),
            kind=CLUSTER if engine.spans_hosts else HOST,
            address="" if engine.spans_hosts else settings.reach.address,
            group=settings.group,
            mounts=mounts.offers,
            cache=mounts.cache,
            runtime_versions=load_runtimes(settings.runtimes).offered if settings.runtimes else (),
        )
        with open_engines(settings, me.agent_id, control_plane) as opened:
            disks = DiskWatch([settings.state_dir, *opened.written], settings.disk_reserve_bytes)
            await asyncio.to_thread(disks.start)
            devices = DeviceErrors()
            if not engine.spans_hosts and any(not is_tpu(gpu.type) for gpu in info.capacity.gpus):
                devices.start()
            lease = _lease(engine, settings, clock)
            majority = Majority(me.agent_id, lease, clock)
            members = PeerMembers(majority, Reach() if engine.spans_hosts else settings.reach)
            await members.open()
            info = info.model_copy(update={"peer_address": members.address})
            agent = Agent(
                AgentParts(
                    opened.runtime,
                    control_plane,
                    opened.stager,
                    clock,
                    lambda: opened.info(
                        info.model_copy(
                            update={
                                "disks": disks.disks,
                                "device_errors": devices.errors,
                                "unreached": members.unreached.ids,
                            }
                        )
                    ),
                    lease,
                    members,
                    disks,
                    mounts,
                    TrackingAddresses(settings.server, settings.tracking_url, str(settings.ca_file or "")),
                    usage_s=settings.usage_every,
                    start_deadline_s=settings.start_deadline or registry.kind_of(engine.name).start_deadline_s,
                )
            )
            if not engine.spans_hosts and (problem := settings.reach.host_name_problem):
                logger.warning("%s", problem)
            logger.info("agent %s (--runtime %s) connects to %s", me.agent_id, settings.runtime, settings.server)
            try:
                await agent.run()
            finally:
                members.close()
                disks.close()
                devices.close()
                # a start that is going on in a thread needs the runtime to its end
                await asyncio.get_running_loop().shutdown_default_executor()


def _lease(engine: Engine, settings: AgentSettings, clock: Clock) -> Lease:
    """The lease of the replicas. An engine that goes on without its agent has none to keep."""
    if engine.spans_hosts:
        return Lease(clock)
    watchdog = watchdog_files.WatchdogKeeper(settings.state_dir)
    return Lease(clock, settings.state_dir / lease_file.NAME, watchdog.ensure_running)


def _token(path: Path | None) -> str:
    """The token of a file. Raises InvalidArgument, and SettingsRefused if others can use it."""
    assert path is not None  # `parse` requires it
    file = read_token_file(path)
    if file.exposure is not None and file.exposure.is_grave:
        raise SettingsRefused(f"--token-file: {file.exposure.message}")
    if file.exposure is not None:
        logger.warning("--token-file: %s", file.exposure.message)
    return file.token


@contextlib.contextmanager
def _agent_lock(state_dir: Path) -> Iterator[None]:
    """Lock the state directory: two agents on it would start the same replicas twice."""
    path = state_dir / watchdog_files.AGENT_LOCK
    locks: list[int] = []

    def locked() -> bool:
        lock = try_lock(path)
        locks.extend([] if lock is None else [lock])
        return lock is not None

    if not wait_until(locked, deadline_in(_LOCK_TIMEOUT_S), _PAUSE_S):
        owner = path.read_text(encoding="ascii").strip()
        raise SettingsRefused(
            f"another worker agent (process {owner or 'unknown'}) uses the state directory {state_dir}: "
            "stop it first, or give this one its own --state-dir."
        )
    (lock,) = locks
    try:
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)
