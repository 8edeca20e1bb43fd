"""What `trainyard doctor` sees on this machine: the service's processes, its ports, its disk, what runs left behind."""

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

from trainyard_cli.local.connect import say
from trainyard_cli.local.state import PROCESSES, LocalState, ProcessName, environment, is_free
from trainyard_protocol.health import Finding, sized

LOW_BYTES = 256 * 2**20
"""Less is a problem whatever the server keeps in reserve."""

_AGENT_TIMEOUT_S = 180.0
_TOP = 5
_NESTED = ("server", "agent")  # their parts are shown one by one
_FINDINGS = TypeAdapter(tuple[Finding, ...])

_MEANINGS = {
    "server": "No command and no agent reaches it; replicas run on, and their output waits on disk.",
    "storage": "gs:// does not work here: jobs that write there fail.",
    "agent": "Replicas run on, but nobody reports how they stand, and nothing new is started.",
}


def services(state: LocalState, fix: bool) -> Iterator[Finding]:
    alive = {name for name in PROCESSES if state.process(name) is not None}
    problems = list(_ended(state, alive, fix))
    yield from problems
    if not alive and not problems:
        found = "The service is stopped; `trainyard up` starts it."
        yield Finding(check="services", status="ok", found=found)
    elif len(alive) == len(PROCESSES):
        yield Finding(check="services", status="ok", found="Server, storage and agent run.")


def _ended(state: LocalState, alive: set[ProcessName], fix: bool) -> Iterator[Finding]:
    for name in PROCESSES:
        if name in alive:
            continue
        noted = state.ended(name)
        if noted and fix and not alive:
            with state.lock(
                lambda: say("Another `trainyard up` or `down` is at work here; waiting for it...")
            ):
                state.forget(name)
            found = f"The {name} had ended by itself: the note of it ({noted}) was removed."
            yield Finding(check="services", status="fixed", found=found)
        elif alive or noted:
            found = (
                f"The {name} has ended by itself: {noted} is gone." if noted else f"The {name} does not run."
            )
            yield Finding(
                check="services",
                status="problem",
                found=found,
                meaning=_MEANINGS[name],
                advice=f"`trainyard up` starts it again; its last words are in {state.log_file(name)}.",
                fixable=not alive,
            )


def ports(state: LocalState) -> Iterator[Finding]:
    """Ports of ours that somebody else listens on."""
    options = state.options()
    wanted: dict[ProcessName, int] = {"server": options.server_port, "storage": options.storage_port}
    runs = any(state.process(name) for name in PROCESSES)
    strangers = 0
    for name, port in wanted.items():
        if not port or state.process(name) is not None or is_free(port):
            continue
        strangers += 1
        found = f"Port {port}, which was the {name}'s, is used by {_listener(port)}."
        if not runs:
            found += " The next `trainyard up` takes another."
            yield Finding(check="ports", status="ok", found=found)
            continue
        yield Finding(
            check="ports",
            status="problem",
            found=found,
            meaning=f"The {name} cannot start again where replicas and agents look for it.",
            advice="End that program; or `trainyard down`, then `trainyard up`, which takes another port.",
        )
    if not strangers:
        numbers = " and ".join(str(port) for port in wanted.values() if port)
        yield Finding(check="ports", status="ok", found=f"Nobody else listens on {numbers}.")


def agent(state: LocalState, live_runs: Sequence[str] | None, fix: bool) -> Iterator[Finding]:
    """What the agent's own code finds here, with a process of its own: it knows its marks and labels."""
    if not (state.root / "agent").is_dir():
        return
    try:
        done = subprocess.run(
            _agent_command(state, live_runs, fix),
            cwd=state.root,
            env=environment(os.environ, state.options()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_AGENT_TIMEOUT_S,
            check=False,
            text=True,
        )
        yield from _FINDINGS.validate_python(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        found = f"Processes, containers and directories were not looked at within {_AGENT_TIMEOUT_S:.0f} s."
        yield Finding(check="agent", status="unknown", found=found)
    except (ValueError, ValidationError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        found = f"Processes, containers and directories could not be looked at: {last}"
        yield Finding(check="agent", status="unknown", found=found)


def disk(state: LocalState) -> Iterator[Finding]:
    usage = shutil.disk_usage(state.root)
    sizes = _sizes(state.root)
    top = ", ".join(f"{name} {sized(size)}" for name, size in sizes.most_common(_TOP) if size)
    found = (
        f"{sized(usage.free)} of {sized(usage.total)} are free. {state.root} takes {sized(sizes.total())}"
        f"{f': {top}' if top else ''}."
    )
    if usage.free >= LOW_BYTES:
        yield Finding(check="disk", status="ok", found=found)
        return
    yield Finding(
        check="disk",
        status="problem",
        found=found,
        meaning="The server takes no new jobs before the disk is full; then what runs cannot be written down.",
        advice="Remove what is not needed any more: job directories in jobs/ and gcs/ are yours.",
    )


def _agent_command(state: LocalState, live_runs: Sequence[str] | None, fix: bool) -> list[str]:
    command = [sys.executable, "-m", "trainyard_agent", "--state-dir", str(state.root / "agent"), "--doctor"]
    if live_runs is not None:
        command += ["--live-runs", ",".join(live_runs)]
    return [*command, "--fix"] if fix else command


def _sizes(root: Path) -> Counter[str]:
    """What each part of the state directory takes, in bytes on the disk."""
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
    except OSError:  # it went in between, or is closed to us
        return 0


def _listener(port: int) -> str:
    """Who listens on a port, as far as this user may see."""
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
