"""Checks of `trainyard doctor` on this machine: processes, ports, disk, orphans of runs."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from trainyard_cli.local.connect import notify
from trainyard_cli.local.state import PROCESSES, LocalState, ProcessName, environment
from trainyard_protocol.net.loopback import is_free
from trainyard_protocol.views.health import Finding, sized

LOW_BYTES = 256 * 2**20
"""Less free disk space is a problem."""

_AGENT_TIMEOUT_S = 180.0
_TOP = 5
_NESTED = ("server", "agent")  # sizes are listed per subdirectory
_FINDINGS = TypeAdapter(tuple[Finding, ...])

_MEANINGS = {
    "server": "Commands and agents cannot reach it. Replicas run on, and the agent stores their output.",
    "storage": "gs:// does not work on this machine: jobs that use it fail.",
    "agent": "Replicas run on, but their state is not reported, and no replicas are started.",
}


def services(state: LocalState, fix: bool) -> Iterator[Finding]:
    alive = {name for name in PROCESSES if state.process(name) is not None}
    problems = list(_ended(state, alive, fix))
    yield from problems
    if not alive and not problems:
        message = "The service is stopped. `trainyard up` starts it."
        yield Finding(check="services", status="ok", found=message)
    elif len(alive) == len(PROCESSES):
        yield Finding(check="services", status="ok", found="Server, storage and agent are running.")


def _ended(state: LocalState, alive: set[ProcessName], fix: bool) -> Iterator[Finding]:
    for name in PROCESSES:
        if name in alive:
            continue
        crashed = state.crashed(name)
        if crashed and fix and not alive:
            with state.lock(lambda: notify("Waiting for another `trainyard up` or `down` to finish...")):
                state.remove_record(name)
            message = f"The {name} had exited unexpectedly: removed the record of {crashed}."
            yield Finding(check="services", status="fixed", found=message)
        elif alive or crashed:
            message = (
                f"The {name} exited unexpectedly: {crashed} is gone."
                if crashed
                else f"The {name} is not running."
            )
            yield Finding(
                check="services",
                status="problem",
                found=message,
                meaning=_MEANINGS[name],
                advice=f"`trainyard up` starts it again. Its log is {state.log_file(name)}.",
                fixable=not alive,
            )


def ports(state: LocalState) -> Iterator[Finding]:
    """Check that no other program listens on the service's ports."""
    options = state.options()
    configured: dict[ProcessName, int] = {"server": options.server_port, "storage": options.storage_port}
    running = any(state.process(name) for name in PROCESSES)
    conflicts = 0
    for name, port in configured.items():
        if not port or state.process(name) is not None or is_free(port):
            continue
        conflicts += 1
        message = f"Port {port}, last used by the {name}, is in use by {_listener(port)}."
        if not running:
            message += " The next `trainyard up` uses another port."
            yield Finding(check="ports", status="ok", found=message)
            continue
        yield Finding(
            check="ports",
            status="problem",
            found=message,
            meaning=f"The {name} cannot start again on the port that replicas and agents use.",
            advice="End that program; or `trainyard down`, then `trainyard up`, which uses another port.",
        )
    if not conflicts:
        numbers = " and ".join(str(port) for port in configured.values() if port)
        yield Finding(check="ports", status="ok", found=f"No other program listens on {numbers}.")


def agent(state: LocalState, live_runs: Sequence[str] | None, fix: bool) -> Iterator[Finding]:
    """Findings of the agent's doctor, run in a process of its own."""
    if not (state.root / "agent").is_dir():
        return
    try:
        done = subprocess.run(
            _agent_command(state, live_runs, fix),
            cwd=state.root,
            env=environment(os.environ, state.storage_url()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_AGENT_TIMEOUT_S,
            check=False,
            text=True,
        )
        yield from _FINDINGS.validate_python(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        message = f"Checking processes, containers and directories took longer than {_AGENT_TIMEOUT_S:.0f} s."
        yield Finding(check="agent", status="unknown", found=message)
    except (ValueError, ValidationError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        message = f"Processes, containers and directories could not be checked: {last}"
        yield Finding(check="agent", status="unknown", found=message)


def disk(state: LocalState) -> Iterator[Finding]:
    usage = shutil.disk_usage(state.root)
    sizes = _sizes(state.root)
    top = ", ".join(f"{name} {sized(size)}" for name, size in sizes.most_common(_TOP) if size)
    message = (
        f"{sized(usage.free)} of {sized(usage.total)} are free. {state.root} uses {sized(sizes.total())}"
        f"{f': {top}' if top else ''}."
    )
    if usage.free >= LOW_BYTES:
        yield Finding(check="disk", status="ok", found=message)
        return
    yield Finding(
        check="disk",
        status="problem",
        found=message,
        meaning="The server stops accepting jobs; on a full disk, states and logs of running jobs cannot be stored.",
        advice="Remove job directories in jobs/ and gcs/ that you do not need.",
    )


def _agent_command(state: LocalState, live_runs: Sequence[str] | None, fix: bool) -> list[str]:
    command = [sys.executable, "-m", "trainyard_agent", "--state-dir", str(state.root / "agent"), "--doctor"]
    if live_runs is not None:
        command += ["--live-runs", ",".join(live_runs)]
    return [*command, "--fix"] if fix else command


def _sizes(root: Path) -> Counter[str]:
    """Size of each part of the state directory, in bytes on disk."""
    sizes: Counter[str] = Counter()
    for path in root.iterdir():
        if path.name in _NESTED and path.is_dir():
            for part in path.iterdir():
                sizes[f"{path.name}/{part.name}"] += _size(part)
        else:
            sizes[path.name] += _size(path)
    return sizes


def _size(path: Path) -> int:
    size = 0
    for directory, _, names in os.walk(path):
        size += sum(_own_size(Path(directory) / name) for name in ("", *names))
    return size or _own_size(path)


def _own_size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:  # it was removed meanwhile, or is not readable
        return 0


def _listener(port: int) -> str:
    """The process that listens on a port, as far as this user may see."""
    try:
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and getattr(connection.laddr, "port", 0) == port
                and connection.pid
            ):
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({process.name()})"
    except psutil.Error:
        return "another program"
    return "another program"
