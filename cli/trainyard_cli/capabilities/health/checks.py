"""Checks of `trainyard doctor` on this machine: stale pid files, ports in use, the disk; and the agent's own checks."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from trainyard_cli.local.options import ProcessName
from trainyard_cli.local.state import PROCESSES, LocalState, commands, environment
from trainyard_protocol.answers.health import Finding
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.fields import sized
from trainyard_protocol.net.loopback import is_free

LOW_BYTES = 256 * 2**20
"""Less free disk space is a problem."""

_PATIENCE_S = 180.0
_TOP = 5  # parts of the state directory that are named
_FINDINGS = TypeAdapter(tuple[Finding, ...])

_MEANINGS = {
    "server": "Commands and agents cannot reach it. Replicas run on, and the agent stores their output.",
    "storage": "gs:// does not work on this machine: jobs that use it fail.",
    "agent": "Replicas run on, but their state is not reported, and no replicas are started.",
}


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, status="ok", found=found)


def problem(check: str, found: str, meaning: str, advice: str, command: str = "") -> Finding:
    return Finding(check=check, status="problem", found=found, meaning=meaning, advice=advice, command=command)


def services(state: LocalState) -> Iterator[Finding]:
    """Findings about processes that run, that have ended, and of which a stale pid file is left."""
    alive = {name for name in PROCESSES if state.process(name) is not None}
    crashed = {name: state.crashed(name) for name in PROCESSES if name not in alive}
    if not crashed:
        yield ok("services", "Server, storage and agent are running.")
    elif not alive and not any(crashed.values()):
        yield ok("services", "The service is stopped. `trainyard up` starts it.")
    else:
        for name, what in crashed.items():
            if alive or what:
                found = f"The {name} exited unexpectedly: {what} is gone." if what else f"The {name} is not running."
                advice = f"Start it again, or end the rest by `trainyard down`. Its log is {state.log_file(name)}."
                yield problem("services", found, _MEANINGS[name], advice, _typed(state, "up"))


def ports(state: LocalState) -> Iterator[Finding]:
    """Check that no other program listens on the service's ports."""
    options = state.options()
    configured: dict[ProcessName, int] = {"server": options.server_port, "storage": options.storage_port}
    taken = {
        name: port for name, port in configured.items() if port and state.process(name) is None and not is_free(port)
    }
    running = any(state.process(name) for name in PROCESSES)
    for name, port in taken.items():
        found = f"Port {port}, last used by the {name}, is in use by {_listener(port)}."
        if running:
            meaning = f"The {name} cannot start again on the port that replicas and agents use."
            advice = "End that program; or let the service use another port, which starts its jobs again."
            yield problem("ports", found, meaning, advice, f"{_typed(state, 'down')} && {_typed(state, 'up')}")
        else:
            yield ok("ports", f"{found} The next `trainyard up` uses another port.")
    if not taken:
        numbers = " and ".join(str(port) for port in configured.values() if port)
        yield ok("ports", f"No other program listens on {numbers}.")


def _typed(state: LocalState, command: str) -> str:
    return shlex.join(["trainyard", command, "--state-dir", str(state.root)])


def agent(state: LocalState) -> Iterator[Finding]:
    """Findings of the agent's doctor, run in a process of its own."""
    if not (state.root / "agent").is_dir():
        return
    try:
        done = _run(state, _agent_command(state))
        yield from _FINDINGS.validate_python(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        found = f"Checking processes and containers took longer than {_PATIENCE_S:.0f} s."
        yield Finding(check="agent", status="unknown", found=found)
    except (ValueError, ValidationError):
        found = f"Processes and containers could not be checked: {_last_line(done)}"
        yield Finding(check="agent", status="unknown", found=found)


def database(state: LocalState) -> Finding:
    """The finding of a server that does not run about its database, by a process of its own."""
    try:
        done = _run(state, [*commands(state, state.options())["server"], "--doctor"])
        return Finding.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        found = f"Reading the database took longer than {_PATIENCE_S:.0f} s."
        return Finding(check="database", status="unknown", found=found)
    except InvalidArgument as error:
        why = error.message
    except ValidationError:
        why = _last_line(done).removeprefix("trainyard_server: ")
    return problem("server", f"The server cannot start: {why}", "No job can be submitted or shown.", "Mend that first.")


def disk(state: LocalState) -> Finding:
    """Free space, whether it can be written, and the largest parts of the state directory."""
    usage = shutil.disk_usage(state.root)
    sizes = _sizes(state.root)
    top = ", ".join(f"{name} {sized(size)}" for name, size in sizes.most_common(_TOP) if size)
    used = f"{state.root} uses {sized(sizes.total())}" + (f": {top}" if top else "")
    found = f"{sized(usage.free)} of {sized(usage.total)} are free. {used}."
    if not os.access(state.root, os.W_OK):
        return problem(
            "disk",
            f"{state.root} cannot be written.",
            "The service does not start; one that runs accepts no jobs and records no results.",
            "Make it writable (`mount` says whether its file system is read-only), or choose another --state-dir.",
        )
    if usage.free >= LOW_BYTES:
        return ok("disk", found)
    return problem(
        "disk",
        found,
        "The server stops accepting jobs; on a full disk, states and logs of running jobs cannot be stored.",
        "Remove job directories in jobs/ and gcs/ that you do not need.",
    )


def _run(state: LocalState, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run the doctor of a part of the service, as that part itself is run. Raises TimeoutExpired."""
    return subprocess.run(
        command,
        cwd=state.root,
        env=environment(os.environ, state.storage_url()),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PATIENCE_S,
        check=False,
        text=True,
    )


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The last line of what a doctor wrote that has failed."""
    return (done.stderr.strip().splitlines() or ["no output"])[-1]


def _agent_command(state: LocalState) -> list[str]:
    command = [sys.executable, "-m", "trainyard_agent", "--state-dir", str(state.root / "agent"), "--doctor"]
    mounts = state.options().mounts
    return [*command, *(["--mounts", mounts] if mounts else [])]


def _sizes(root: Path) -> Counter[str]:
    """Bytes on disk by directory, such as `server/logs`."""
    sizes: Counter[str] = Counter()
    for directory, _, names in os.walk(root):
        part = "/".join(Path(directory).relative_to(root).parts[:2]) or "."
        for name in ("", *names):
            with suppress(OSError):  # it was removed meanwhile, or is not readable
                sizes[part] += Path(directory, name).lstat().st_blocks * 512
    return sizes


def _listener(port: int) -> str:
    """The process that listens on a port, as far as this user may see."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            is_there = connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", 0) == port
            if is_there and connection.pid:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({process.name()})"
    return "another program"
