"""Waiting program of a `jobs dev` job. It ends once nothing has used its replica for a while, and starts JupyterLab
where it is asked to.

Its source is the job's program: it uses only the standard library, of Python 3.8 or later.
`python waiter.py SECONDS`.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TAG = "TRAINYARD_REPLICA"
"""The variable by which processes of a replica without a container are found."""

_SHARE = 0.01
_POLL_S = 0.5
_MOST_SAMPLES = 60  # of the time after which the job ends
_LONGEST_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class ReplicaProcess(NamedTuple):
    """A process of the replica. `leads`: it leads a session. `cpu_s`: with the children that it has waited for."""

    parent: int
    leads: bool
    has_terminal: bool
    started: int
    cpu_s: float


class UseSample(NamedTuple):
    """The use of the replica at one moment: whether a person is attached, and the CPU seconds of all others so far."""

    at: float
    attached: bool
    used_s: float


def is_idle(samples: Sequence[UseSample], idle_s: float) -> bool:
    """Whether nobody was attached, and less than 1 % of a CPU was used, for that long until the last sample. Pure."""
    since = samples[-1].at - idle_s
    start = max((at for at, sample in enumerate(samples) if sample.at <= since), default=None)
    if start is None:
        return False
    within = samples[start:]
    used_s = within[-1].used_s - within[0].used_s
    return not any(sample.attached for sample in within) and used_s < _SHARE * idle_s


def others(processes: Mapping[int, ReplicaProcess], own: int) -> dict[int, ReplicaProcess]:
    """The processes without this one and those above it. Pure."""
    above = {own}
    while own in processes and processes[own].parent not in above:
        own = processes[own].parent
        above.add(own)
    return {pid: process for pid, process in processes.items() if pid not in above}


def is_attached(processes: Mapping[int, ReplicaProcess], own: int) -> bool:
    """Whether there is a command beside the program. Pure.

    In a container its parent is outside, which is 0 there. Elsewhere it leads the session of a terminal, and is no
    child of a process of the replica. What it leaves in the background is neither.
    """
    return any(
        (process.parent == 0 and pid != 1)
        or (process.leads and process.has_terminal and process.parent not in processes)
        for pid, process in others(processes, own).items()
    )


def used_between(before: Mapping[int, ReplicaProcess], after: Mapping[int, ReplicaProcess], own: int) -> float:
    """CPU seconds that all others have used between two readings. Pure."""
    used_s = 0.0
    for pid, process in others(after, own).items():
        earlier = before.get(pid)
        is_same = earlier is not None and earlier.started == process.started
        used_s += max(0.0, process.cpu_s - (earlier.cpu_s if is_same and earlier is not None else 0.0))
    return used_s


def read_processes(tag: str) -> dict[int, ReplicaProcess]:
    """The processes with this tag; "": all that a container has. Zombies are none."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - as older Pythons have it
        if not name.isdigit():
            continue
        try:
            if tag and f"{TAG}={tag}".encode() not in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                continue
            fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended, or is another user's
            continue
        if fields[0] != "Z":
            cpu = sum(map(int, fields[11:15])) / _TICKS
            found[int(name)] = ReplicaProcess(int(fields[1]), fields[3] == name, fields[4] != "0", int(fields[19]), cpu)
    return found


def directory_of_job() -> Path:
    """The directory of `jobs dev`: in the working directory, or where that may not be written, that of temporary files.
    A shell finds it by the same rule (`entering`)."""
    base = str(Path.cwd())
    if not os.access(base, os.W_OK):
        base = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as a shell does
    return Path(base, "trainyard-dev")


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user reads, complete from the first moment."""
    part = path.with_name(path.name + ".part")
    descriptor = os.open(str(part), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    part.replace(path)


def is_synchronised(directory: Path) -> bool:
    """Whether a `jobs dev` holds the lock: its shell or its notebook is open."""
    with (directory / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def start_notebook(directory: Path) -> subprocess.Popen[bytes]:
    """Start JupyterLab at a free port of the loopback, and write down how it is reached."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_urlsafe(32)
    settings = (
        *("--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"),
        *("--ServerApp.port_retries=0", f"--ServerApp.root_dir={directory / 'code'}"),
    )
    with (directory / "notebook.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *settings],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=str(directory / "code"),
            env=dict(environment(directory), JUPYTER_TOKEN=token),
            start_new_session=True,
        )
    write_private(directory / "notebook.json", json.dumps({"pid": process.pid, "port": port, "token": token}))
    return process


def environment(directory: Path) -> dict[str, str]:
    """The environment of a notebook: that of a shell of `jobs dev`."""
    code = directory / "code"
    paths = [str(code), str(code / "src"), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PATH=os.pathsep.join(programs))


def in_words(seconds: float) -> str:
    """A duration in its largest unit.

    >>> [in_words(seconds) for seconds in (5400, 7200, 90)]
    ['90 min', '2 h', '90 s']
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def main(idle_s: float) -> None:
    """Wait until the replica is idle. All but the primary wait for the primary's end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the first process of a container has no default
        signal.signal(number, lambda number, _frame: os._exit(128 + number))
    directory = directory_of_job()
    (directory / "code").mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(directory / "python", sys.executable)
    task = json.loads(os.environ.get("CLUSTER_SPEC", "{}")).get("task", {"type": "master"})
    if task["type"] not in ("master", "chief"):
        print("It waits for the end of the primary.", flush=True)
        while True:
            signal.pause()
    print(f"It waits for `jobs dev`, and ends once nothing has used it for {in_words(idle_s)}.", flush=True)
    _wait(directory, idle_s)
    print(f"Nothing used it for {in_words(idle_s)}: it ends.", flush=True)


def _wait(directory: Path, idle_s: float) -> None:
    tag, own = os.environ.get(TAG, ""), os.getpid()
    notebooks = []
    before = read_processes(tag)
    samples: list[UseSample] = [UseSample(time.monotonic(), False, 0.0)]
    interval_s = min(max(idle_s / _MOST_SAMPLES, _POLL_S), _LONGEST_S)
    while not is_idle(samples, idle_s):
        time.sleep(_POLL_S)
        if (directory / "notebook.wanted").exists():
            (directory / "notebook.wanted").unlink()
            notebooks.append(start_notebook(directory))
        notebooks = [notebook for notebook in notebooks if notebook.poll() is None]
        if own == 1:
            _reap({notebook.pid for notebook in notebooks})
        now = time.monotonic()
        if now - samples[-1].at < interval_s:
            continue
        after = read_processes(tag)
        attached = is_synchronised(directory) or is_attached(after, own)
        samples.append(UseSample(now, attached, samples[-1].used_s + used_between(before, after, own)))
        before = after
        while len(samples) > 2 and samples[1].at <= now - idle_s:
            del samples[0]


def _reap(kept: set[int]) -> None:
    """Let orphans of the container go that have ended, as its first process has to."""
    for pid, process in list(_zombies().items()):
        if process == 1 and pid not in kept:
            os.waitpid(pid, os.WNOHANG)


def _zombies() -> dict[int, int]:
    """The parent of each zombie."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        try:
            fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if fields[0] == "Z":
            found[int(name)] = int(fields[1])
    return found


if __name__ == "__main__":
    main(float(sys.argv[1]))
