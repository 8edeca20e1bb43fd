"""`trainyard up`, `down` and `status`: the local service as a whole."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trainyard_cli.client import NO_PATIENCE, Client
from trainyard_cli.local.state import (
    PROCESSES,
    LocalState,
    Options,
    ProcessName,
    check_cpus,
    commands,
    environment,
    is_free,
    let_go,
    stop_all_command,
)
from trainyard_cli.settings import DEFAULT_PROJECT, Server
from trainyard_protocol.errors import TrainyardError, Unauthenticated, Unavailable
from trainyard_protocol.health import CheckStatus, Health
from trainyard_protocol.machines import load_catalog
from trainyard_protocol.states import JobState
from trainyard_protocol.views import ServerStatus

START_TIMEOUT_S = 60.0
STOP_ALL_TIMEOUT_S = 180.0

_POLL_S = 0.05
_STATUS_TIMEOUT_S = 10.0  # a server waits for a part that hangs, and then says so
_PORT_ATTEMPTS = 3
_RUNNING = (JobState.PREPARING, JobState.RUNNING)

Say = Callable[[str], None]


class PortLost(Unavailable):
    """A port that was free a moment ago is another program's now."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the local service as `status` shows it. `pid` is None where it does not run."""

    name: ProcessName
    pid: int | None
    address: str


@dataclass(frozen=True, slots=True)
class Status:
    """`server` is None when the server cannot say how its agents stand; `problem` then says why. `health` is None when
    it does not answer at all."""

    parts: tuple[Part, ...]
    server: ServerStatus | None
    problem: str = ""
    health: Health | None = None

    @property
    def healthy(self) -> bool:
        """Every process runs, the server answers and all its checks are ok, and it has an agent."""
        agents = self.server.agents if self.server else ()
        checked = self.health is not None and self.health.status is CheckStatus.OK
        return checked and all(part.pid for part in self.parts) and any(agent.alive for agent in agents)


def up(state: LocalState, changes: Mapping[str, Any], say: Say, timeout_s: float = START_TIMEOUT_S) -> Status:
    """Start what is not alive and wait until it works. `changes` are the options that were given.

    Options that are not given stay as they were. Safe to call at any time, also twice at once. Raises
    Unavailable, with the end of the log, when a part does not come up in time; the options that were given
    are then forgotten, and nothing that was started for them stays.
    """
    state.create()
    with state.lock(lambda: say("Another `trainyard up` or `down` is at work here; waiting for it...")):
        for _ in range(_PORT_ATTEMPTS - 1):
            try:
                _start_what_is_missing(state, changes, say, timeout_s)
            except PortLost as lost:
                say(f"{lost.message} Trying another port.")
            else:
                return status(state)
        _start_what_is_missing(state, changes, say, timeout_s)
    return status(state)


def ensure_up(state: LocalState, say: Say) -> None:
    """Start the local service if any part of it does not run, and say so. Waits where another one starts it."""
    if state.exists() and all(state.process(name) for name in PROCESSES):
        if not _answers(state):
            up(state, {}, say)
        return
    known = state.exists()
    say(
        "The local service is not running: starting it (trainyard up)."
        if known
        else f"No server is configured: starting the local one (trainyard up) in {state.root}."
    )
    up(state, {}, say)


def down(state: LocalState, say: Say) -> bool:
    """Stop the agent, every replica, the server and the storage emulator; nothing stays behind.

    Returns whether anything was there to be stopped. Raises Unavailable when replicas would not go.
    """
    if not state.root.is_dir() or not state.exists():
        return False
    with state.lock(lambda: say("Another `trainyard up` or `down` is at work here; waiting for it...")):
        interrupted = _running_jobs(state)
        stopped = [state.stop("agent")]
        try:
            _stop_replicas(state)
        finally:
            stopped += [state.stop("server"), state.stop("storage")]
    for job in interrupted:
        say(f"Interrupted {job}; the next `trainyard up` goes on with it.")
    return any(stopped)


def status(state: LocalState) -> Status:
    """How the local service stands, right now."""
    options = state.options()
    addresses: dict[ProcessName, str] = {
        "server": f"http://127.0.0.1:{options.server_port}" if options.server_port else "",
        "storage": f"http://127.0.0.1:{options.storage_port}" if options.storage_port else "",
        "agent": "",
    }
    parts = []
    for name in PROCESSES:
        process = state.process(name)
        parts.append(Part(name, process.pid if process else None, addresses[name]))
    server = state.server()
    if server is None:
        return Status(tuple(parts), None, f"The local service was never started in {state.root}.")
    if state.process("server") is None:
        return Status(tuple(parts), None, "The local service is not running; `trainyard up` starts it.")
    return server_status(server, tuple(parts))


def server_status(server: Server, parts: tuple[Part, ...] = ()) -> Status:
    """What the server says of itself, as far as it can; TrainyardError only where no Trainyard answers."""
    with Client(server, DEFAULT_PROJECT, patience=NO_PATIENCE, timeout=_STATUS_TIMEOUT_S) as client:
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


def _start_what_is_missing(state: LocalState, changes: Mapping[str, Any], say: Say, timeout_s: float) -> None:
    """Raises PortLost, with nothing of this attempt left, when another program was faster to take a port."""
    before = state.options()
    wanted = replace(before, **changes)
    _check(state, wanted, changes)
    options = state.with_ports(wanted)
    state.save(options)
    started: dict[ProcessName, subprocess.Popen[bytes]] = {}
    logged: dict[str, int] = {}
    since = datetime.now(UTC)
    inherited = environment(os.environ, options)
    for name, command in commands(state, options).items():
        if running := state.process(name):
            if running.command != tuple(command) and before != options:
                say(f"The {name} runs already; `trainyard down` and `up` give it the new options.")
            continue
        logged[name] = state.log_size(name)
        started[name] = state.start(name, command, inherited)
    try:
        _wait_until_ready(state, options, started, logged, since, timeout_s)
    except TrainyardError as error:
        if not isinstance(error, PortLost):
            state.save(replace(before, server_port=options.server_port, storage_port=options.storage_port))
        for name in reversed(started):
            state.stop(name)
        raise
    finally:
        for process in started.values():
            let_go(process)


def _check(state: LocalState, options: Options, changes: Mapping[str, Any]) -> None:
    """Raises InvalidArgument for options that a part would refuse: those just given, and those it starts with."""
    if options.cpus and ("cpus" in changes or state.process("agent") is None):
        check_cpus(options.cpus, os.sched_getaffinity(0))
    if options.machine_types and ("machine_types" in changes or state.process("server") is None):
        load_catalog(Path(options.machine_types))


def _answers(state: LocalState) -> bool:
    server = state.server()
    if server is None:
        return False
    with Client(server, DEFAULT_PROJECT, patience=NO_PATIENCE, timeout=2.0) as client:
        return client.answers()


def _wait_until_ready(
    state: LocalState,
    options: Options,
    started: Mapping[ProcessName, subprocess.Popen[bytes]],
    logged: Mapping[str, int],
    since: datetime,
    timeout_s: float,
) -> None:
    server = state.server()
    if server is None:
        raise Unavailable(f"The state directory {state.root} was removed meanwhile.")
    deadline = time.monotonic() + timeout_s
    with Client(server, DEFAULT_PROJECT, patience=NO_PATIENCE, timeout=2.0) as client:
        while True:
            for name, process in started.items():
                if process.poll() is not None:
                    raise _ended_at_once(state, options, name, process.returncode, logged.get(name, 0))
            missing = _missing(client, options, since if "agent" in started else None)
            if missing is None:
                return
            if time.monotonic() > deadline:
                tail = _tail(state, missing, logged.get(missing, 0))
                said = _trouble(client)
                raise Unavailable(f"The local {missing} was not ready within {timeout_s:.0f} s.{said}{tail}")
            time.sleep(_POLL_S)


def _ended_at_once(
    state: LocalState, options: Options, name: ProcessName, code: int, logged: int
) -> Unavailable:
    port = {"server": options.server_port, "storage": options.storage_port}.get(name)
    if port and not is_free(port):
        return PortLost(f"Another program took port {port} before the local {name} could.")
    return Unavailable(f"The local {name} ended at once, with exit code {code}.{_tail(state, name, logged)}")


def _missing(client: Client, options: Options, agent_since: datetime | None) -> ProcessName | None:
    """The first part that does not work yet. An agent that we started must have been heard of since then."""
    if not client.answers():
        return "server"
    if is_free(options.storage_port):
        return "storage"
    try:
        agents = client.status().agents
    except (Unavailable, Unauthenticated):  # Unauthenticated: somebody else's server answers on our port
        return "server"
    heard = agent_since or datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
    return None if any(a.alive and a.last_seen >= heard for a in agents) else "agent"


def _trouble(client: Client) -> str:
    """What a server that is there says of itself."""
    try:
        checks = client.health().checks
    except TrainyardError:
        return ""
    down = [f"{name}: {check.message}" for name, check in checks.items() if check.status is CheckStatus.DOWN]
    return f" The server says: {'; '.join(down)}." if down else ""


def _running_jobs(state: LocalState) -> list[str]:
    """The jobs that have replicas now, as a person would call them; none when the server cannot say."""
    server = state.server()
    if server is None or state.process("server") is None:
        return []
    try:
        with Client(server, DEFAULT_PROJECT, patience=NO_PATIENCE, timeout=5.0) as client:
            running = [job["jobId"] for name in _RUNNING for job in client.list_jobs(f"state:{name}")]
            counts = client.status().jobs
    except TrainyardError:
        return []
    others = sum(counts.get(name, 0) for name in _RUNNING) - len(running)
    return [f"the job {job}" for job in running] + (
        [f"{others} jobs of other projects"] if others > 0 else []
    )


def _stop_replicas(state: LocalState) -> None:
    """Have every replica under the state directory stopped, whatever became of the agent."""
    if not (state.root / "agent").is_dir():
        return
    log = state.log_file("stop-all")
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                stop_all_command(state),
                cwd=state.root,
                env=environment(os.environ, state.options()),
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
    """The end of a log, of what was written after its first `after` bytes."""
    tail = state.log_tail(name, after=after)
    where = f" Its log is {state.log_file(name)}"
    return f"{where}; the end of it:\n{tail}" if tail else f"{where} (nothing was written)."
