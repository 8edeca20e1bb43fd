"""Starts, stops and inspects the local service: server, storage emulator and agent.

The client and its models are loaded once the processes start, beside them.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard_cli.local.listening import own_address
from trainyard_cli.local.options import Options, ProcessName
from trainyard_cli.local.state import (
    PREFERRED_GOOGLE_PORT,
    PROCESSES,
    LocalState,
    check_cpus,
    commands,
    detach,
    environment,
    stop_all_command,
)
from trainyard_cli.settings import DEFAULT_PROJECT, Server
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, TrainyardError, Unauthenticated, Unavailable
from trainyard_protocol.net.loopback import free_port, is_free
from trainyard_protocol.states import JobState

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_cli.v1_client import V1Client
    from trainyard_protocol.answers.cluster import ServerStatus
    from trainyard_protocol.answers.health import Health

START_TIMEOUT_S = 600.0
"""A process that lives may take so long to be ready: on a busy machine its imports alone take a minute."""

STOP_ALL_TIMEOUT_S = 180.0

_POLL_S = 0.05
_NEXT_TRY_S = 5.0  # longer than an agent pauses that is refused
_STATUS_TIMEOUT_S = 10.0  # longer than the server waits for a part that hangs
_PORT_ATTEMPTS = 3
_LOCAL_MODULES = ("uvicorn", "docker", "h11")  # of the extra `local`
_RUNNING = (JobState.PREPARING, JobState.RUNNING)

_PARTS: Mapping[ProcessName, str] = {"server": "server", "storage": "storage emulator", "agent": "worker agent"}

Notify = Callable[[str], None]


def _ignore(_text: str) -> None:
    """The default of `report`."""


class AgentRefused(FailedPrecondition):
    """The server lets the local agent not join; it reconnects once that is repaired."""


class PortLost(Unavailable):
    """Another program has bound a port that was free before."""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process of the local service. `pid` is None if it is not running."""

    name: ProcessName
    pid: int | None
    address: str


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a service. `server` is None if the server cannot report it, for the reason in `problem`; `health` is
    None if it does not answer."""

    parts: tuple[ServiceProcess, ...]
    server: "ServerStatus | None"
    problem: str = ""
    health: "Health | None" = None
    network: Server | None = None
    """The server as other machines reach it; None if they do not."""

    @property
    def healthy(self) -> bool:
        """Whether every process runs, all checks are ok and an agent is alive."""
        from trainyard_protocol.answers.health import CheckStatus

        agents = self.server.agents if self.server else ()
        ok = self.health is not None and self.health.status is CheckStatus.OK
        return ok and all(part.pid for part in self.parts) and any(agent.alive for agent in agents)


def up(
    state: LocalState,
    changes: Mapping[str, Any],
    notify: Notify,
    timeout_s: float = START_TIMEOUT_S,
    *,
    report: Notify = _ignore,
) -> Status:
    """Start the missing processes and wait until they are ready. Idempotent, also when called concurrently. `report`
    gets what is waited for, again and again.

    `changes` are the given options; others keep their last values. Raises Unavailable, with the end of the log, if a
    process is not ready in time; `changes` are then discarded and the started processes stopped. Raises
    FailedPrecondition if only the command line is installed.
    """
    if any(find_spec(name) is None for name in _LOCAL_MODULES):
        raise FailedPrecondition(
            "The service is not installed: pip install 'trainyard[local]'. To use a server on another machine, "
            "set TRAINYARD_SERVER and TRAINYARD_TOKEN."
        )
    state.create()
    with state.lock(notify):
        for _ in range(_PORT_ATTEMPTS - 1):
            try:
                _start_missing(state, changes, notify, report, timeout_s)
            except PortLost as lost:
                notify(f"{lost.message} Trying again.")
            else:
                return status(state)
        _start_missing(state, changes, notify, report, timeout_s)
    return status(state)


def ensure_up(state: LocalState, notify: Notify, report: Notify = _ignore) -> None:
    """Start the local service unless all of it runs. Waits for a concurrent `up`."""
    if state.exists() and all(state.process(name) for name in PROCESSES):
        if not _answers(state):
            up(state, {}, notify, report=report)
        return
    exists = state.exists()
    notify(
        "Starting the local service (trainyard up)..."
        if exists
        else f"No server is configured. Starting a local one (trainyard up) in {state.root}..."
    )
    up(state, {}, notify, report=report)


def serve_google(state: LocalState, notify: Notify, *, wanted: bool, report: Notify = _ignore) -> Server:
    """Start the server with Google's names, or without; jobs go on while it starts anew. Starts the service if it is
    to have them and does not run. Raises what `up` raises."""
    options = state.options() if state.exists() else Options()
    port = options.google_port
    if wanted and not port:
        port = PREFERRED_GOOGLE_PORT if is_free(PREFERRED_GOOGLE_PORT) else free_port()
    running = state.process("server") if state.exists() else None
    if not wanted and running is None:
        state.save(replace(options, google_port=0))
    elif running is None or (str(port) in running.command) is not wanted:
        if running is not None:
            report("starting the server again")
            with state.lock(notify):
                state.stop("server")
        try:
            up(state, {"google_port": port if wanted else 0}, notify, report=report)
        except TrainyardError as error:
            if running is None or isinstance(error, AgentRefused):  # which leaves the server running
                raise
            _start_as_before(state, options, notify, report)
            raise Unavailable(
                f"The server could not be started with other names: {error.message} It runs again as before, at "
                f"{status(state).parts[0].address}; repeat the command."
            ) from error
    server = state.server()
    if server is None:
        raise FailedPrecondition(f"The state directory {state.root} was removed.")
    return server


def _start_as_before(state: LocalState, options: Options, notify: Notify, report: Notify) -> None:
    """Start a server again that was stopped, with these options. Where another program has bound its port meanwhile, it
    gets another one, and so does its agent; replicas go on. Raises what `up` raises."""
    changes = {"google_port": options.google_port}
    try:
        up(state, changes, notify, report=report)
    except TrainyardError:
        if is_free(options.server_port):
            raise
        notify(f"Another program has bound port {options.server_port}: the server gets another one.")
        with state.lock(notify):
            state.stop("agent")
        state.save(replace(state.options(), server_port=0))
        up(state, changes, notify, report=report)


def down(state: LocalState, notify: Notify) -> bool:
    """Stop the agent, every replica, the server and the storage emulator. Returns whether any of them ran.

    Raises Unavailable if replicas could not be stopped.
    """
    if not state.root.is_dir() or not state.exists():
        return False
    with state.lock(notify):
        interrupted = _running_jobs(state)
        stopped = [state.stop("agent")]
        try:
            _stop_replicas(state)
        finally:
            stopped += [state.stop("server"), state.stop("storage")]
    for job in interrupted:
        notify(f"Interrupted {job}. The next `trainyard up` starts it again.")
    return any(stopped)


def status(state: LocalState) -> Status:
    """The local service's current status."""
    options = state.options()
    addresses: dict[ProcessName, str] = {
        "server": f"http://127.0.0.1:{options.server_port}" if options.server_port else "",
        "storage": f"http://127.0.0.1:{options.storage_port}" if options.storage_port else "",
        "agent": "",
    }
    parts = []
    for name in PROCESSES:
        process = state.process(name)
        parts.append(ServiceProcess(name, process.pid if process else None, addresses[name]))
    server = state.server()
    if server is None:
        return Status(
            tuple(parts), None, f"The local service was never started in {state.root}. `trainyard up` starts it."
        )
    if state.process("server") is None:
        return Status(tuple(parts), None, "The local service is not running. `trainyard up` starts it.")
    try:
        state.check_port()
    except Unavailable as error:
        return Status(tuple(parts), None, error.message)
    return replace(server_status(server, tuple(parts)), network=state.network_server())


def server_status(server: Server, parts: tuple[ServiceProcess, ...] = ()) -> Status:
    """Status as reported by the server. Without `parts`, raises TrainyardError if it does not answer."""
    with _client(server, _STATUS_TIMEOUT_S) as client:
        try:
            health = client.health()
        except TrainyardError as error:
            if not parts:
                raise
            return Status(parts, None, error.message)
        try:
            return Status(parts, client.status(), health=health)
        except TrainyardError as error:
            return Status(parts, None, error.message, health)


def _start_missing(
    state: LocalState, changes: Mapping[str, Any], notify: Notify, report: Notify, timeout_s: float
) -> None:
    """Start the missing processes; on failure stop them again. Raises PortLost if another program bound a port."""
    before = state.options()
    requested = replace(before, **changes)
    _check(state, requested, changes)
    apply_quotas(state, before, requested, notify, changed="quotas" in changes)
    options = state.with_ports(requested)
    state.save(options)
    started: dict[ProcessName, subprocess.Popen[bytes]] = {}
    logged: dict[str, int] = {}
    since = datetime.now(UTC)
    inherited = environment(os.environ, state.storage_url())
    for name, command in commands(state, options).items():
        if running := state.process(name):
            if running.command != tuple(command):
                how = (
                    "with the old options. To apply the new ones"
                    if before != options
                    else "as another release or environment started it. To replace it"
                )
                notify(f"The {name} is running {how}: `trainyard down`, then `up`.")
            continue
        logged[name] = state.log_size(name)
        started[name] = state.start(name, command, inherited)
    try:
        _wait_until_ready(state, options, started, logged, since, report, timeout_s)
    except AgentRefused:  # the server is needed to mend that
        raise
    except TrainyardError as error:
        if not isinstance(error, PortLost):
            state.save(replace(before, server_port=options.server_port, storage_port=options.storage_port))
        for name in reversed(started):
            state.stop(name)
        raise
    except KeyboardInterrupt:
        notify("\nThe service is still starting. `trainyard status` shows its state, `trainyard down` stops it.")
        raise
    finally:
        for process in started.values():
            detach(process)


def _check(state: LocalState, options: Options, changes: Mapping[str, Any]) -> None:
    """Validate options that were given or that a process starts with. Raises InvalidArgument."""
    if options.cpus and ("cpus" in changes or state.process("agent") is None):
        check_cpus(options.cpus, os.sched_getaffinity(0))
    if options.listen and ("listen" in changes or state.process("server") is None):
        own_address(options.listen)
    if changes.get("shared_job_dirs") and not options.listen:
        raise InvalidArgument("--shared-job-dirs is for a service that other machines join: give --listen ADDRESS too.")
    if options.machine_types and ("machine_types" in changes or state.process("server") is None):
        from trainyard_protocol.job.machines import load_catalog

        load_catalog(Path(options.machine_types))


def apply_quotas(state: LocalState, before: Options, requested: Options, notify: Notify, *, changed: bool) -> None:
    """Have a running server read the requested quota file; one that is to start reads it then.

    Raises InvalidArgument, with file and line, for a file that the server refuses; the old one stays in force.
    """
    running, server = state.process("server"), state.server()
    if running is None or server is None:
        state.link_quotas(requested.quotas)
        return
    if not changed or str(state.quota_file) not in running.command:
        return
    state.link_quotas(requested.quotas)
    with _client(server) as client:
        try:
            client.reload_quotas()
        except TrainyardError:
            state.link_quotas(before.quotas)
            raise
    notify(f"The quotas of {requested.quotas} are in force. Running jobs continue.")


def _answers(state: LocalState) -> bool:
    from trainyard_cli.v1_client import NO_RETRIES, V1Client

    server = state.server()
    if server is None:
        return False
    with V1Client(server, DEFAULT_PROJECT, retry_delays=NO_RETRIES, timeout=2.0) as client:
        return _is_answering(state, client)


def _is_answering(state: LocalState, client: "V1Client") -> bool:
    """Whether this user's server answers; before it has bound its port another user may have."""
    try:
        state.check_port()
    except Unavailable:
        return False
    return client.answers()


def _client(server: Server, timeout_s: float | None = None) -> "Client":
    """A client that tries each call once; None: with the timeouts of every client."""
    from trainyard_cli.client import Client
    from trainyard_cli.v1_client import NO_RETRIES, TIMEOUT

    return Client(server, DEFAULT_PROJECT, retry_delays=NO_RETRIES, timeout=timeout_s or TIMEOUT)


def _wait_until_ready(
    state: LocalState,
    options: Options,
    started: Mapping[ProcessName, subprocess.Popen[bytes]],
    logged: Mapping[str, int],
    since: datetime,
    report: Notify,
    timeout_s: float,
) -> None:
    server = state.server()
    if server is None:
        raise Unavailable(f"The state directory {state.root} was removed.")
    begun_at, answers = time.monotonic(), False
    deadline = begun_at + timeout_s
    # One that runs may have been let in since its last try.
    refused_from = begun_at + (0.0 if "agent" in started else _NEXT_TRY_S)
    with _client(server, 2.0) as client:
        while True:
            for name, process in started.items():
                if process.poll() is not None:
                    raise _start_failure(state, options, name, process.returncode, logged.get(name, 0))
            answers = answers or _is_answering(state, client)
            missing = _missing(state, client, options, since if "agent" in started else None) if answers else "server"
            if missing is None:
                return
            report(f"starting the {_PARTS[missing]}")
            refusal = _refusal(state, logged.get("agent", 0)) if missing == "agent" else ""
            if refusal and time.monotonic() >= refused_from:
                raise AgentRefused(f"The service runs, but without its agent: {refusal}")
            if missing not in started and state.process(missing) is None:
                raise Unavailable(f"The local {missing} has ended.{_tail(state, missing)}")
            if time.monotonic() > deadline:
                tail = _tail(state, missing, logged.get(missing, 0))
                checks = _failed_checks(client) if answers else ""
                raise Unavailable(f"The local {missing} was not ready within {timeout_s:.0f} s.{checks}{tail}")
            time.sleep(_POLL_S)


def _refusal(state: LocalState, after: int) -> str:
    """The server's words if it refuses the agent now, by the agent's log; else ""."""
    from trainyard_protocol.answers.agents import ANSWERED, REFUSED

    words = ""
    for line in state.log_tail("agent", lines=1000, after=after).splitlines():
        if REFUSED in line:
            words = line.partition(REFUSED)[2].removesuffix("Replicas keep running; trying again.").strip()
        elif line.endswith(ANSWERED):
            words = ""
    return words


def _start_failure(state: LocalState, options: Options, name: ProcessName, code: int, logged: int) -> Unavailable:
    port = {"server": options.server_port, "storage": options.storage_port}.get(name)
    if port and not is_free(port):
        return PortLost(f"Another program bound port {port} before the local {name} did.")
    return Unavailable(f"The local {name} exited at start with code {code}.{_tail(state, name, logged)}")


def _missing(state: LocalState, client: "Client", options: Options, agent_since: datetime | None) -> ProcessName | None:
    """The first process that is not ready, where a server has answered. This machine's agent, started at
    `agent_since`, must have reported since then."""
    if is_free(options.storage_port):
        return "storage"
    try:
        agents = client.status().agents
    except (Unavailable, Unauthenticated):  # Unauthenticated: another user's server has our port
        return "server"
    since = agent_since or datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
    own = [agent for agent in agents if agent.agent_id == state.agent_id]
    return None if any(agent.alive and agent.last_seen >= since for agent in own) else "agent"


def _failed_checks(client: "Client") -> str:
    """The server's failed health checks, as a sentence."""
    from trainyard_protocol.answers.health import CheckStatus

    try:
        checks = client.health().checks
    except TrainyardError:
        return ""
    down = [f"{name}: {check.message}" for name, check in checks.items() if check.status is CheckStatus.DOWN]
    return f" The server reports: {'; '.join(down)}." if down else ""


def _running_jobs(state: LocalState) -> list[str]:
    """Names of the jobs that have replicas now; empty if the server does not answer."""
    server = state.server()
    if server is None or state.process("server") is None:
        return []
    try:
        state.check_port()
        with _client(server, 5.0) as client:
            running = [job["jobId"] for name in _RUNNING for job in client.list_jobs(f"state:{name}")]
            counts = client.status().jobs
    except TrainyardError:
        return []
    others = sum(counts.get(name, 0) for name in _RUNNING) - len(running)
    return [f"the job {job}" for job in running] + ([f"{others} jobs of other projects"] if others > 0 else [])


def _stop_replicas(state: LocalState) -> None:
    """Stop every replica under the state directory, with or without a running agent."""
    if not (state.root / "agent").is_dir():
        return
    log = state.log_file("stop-all")
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                stop_all_command(state),
                cwd=state.root,
                env=environment(os.environ, state.storage_url()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=STOP_ALL_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"Some replicas did not stop within {STOP_ALL_TIMEOUT_S:.0f} s.{_tail(state, 'stop-all')}"
        ) from None
    if done.returncode:
        raise Unavailable(f"Some replicas could not be stopped.{_tail(state, 'stop-all')}")


def _tail(state: LocalState, name: str, after: int = 0) -> str:
    """Log file and last lines, without the first `after` bytes."""
    tail = state.log_tail(name, after=after)
    log = f" Its log is {state.log_file(name)}"
    return f"{log}; the last lines:\n{tail}" if tail else f"{log} (nothing was written)."
