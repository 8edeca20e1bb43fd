"""Process information from /proc: descendants, CPU time, memory, signal handlers."""

import contextlib
import os
import signal
from itertools import takewhile
from pathlib import Path

LAUNCHER = "trainyard-keep"
"""The name of the process that waits for a program (`launcher` of the command line), no part of that."""

_PROC = Path("/proc")


def tree(root: int) -> tuple[int, ...]:
    """The pids of `root` and all its descendants, parents first; without processes that have ended."""
    pids = [root] if _field(root, "Pid") else []
    for pid in pids:
        pids += sorted(_children(pid))
    return tuple(pids)


def _children(pid: int) -> list[int]:
    """The children of all threads of a process. Source: proc(5), /proc/PID/task/TID/children."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.scandir(f"{_PROC}/{pid}/task"):
            with contextlib.suppress(OSError):  # the thread has ended
                children += map(int, _read(f"{thread.path}/children").split())
    return children


def cpu_s(pid: int, *, own: bool = True) -> float:
    """Seconds of CPU time of a process and the children that it has reaped; without `own` of those children alone.
    0.0 if there is no such process."""
    try:
        fields = _read(f"{_PROC}/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return 0.0
    # utime, stime, cutime, cstime: fields 14 to 17 of proc(5). The second is the name, which may hold blanks.
    return sum(map(int, fields[11 if own else 13 : 15])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process. 0 if there is no such process."""
    size = _field(pid, "VmRSS").split()
    return int(size[0]) << 10 if size else 0


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal, so that the signal does not kill it."""
    mask = _field(pid, "SigCgt")
    return bool(mask) and bool(int(mask, 16) >> (number - 1) & 1)


def lives(pid: int) -> bool:
    """Whether there is such a process, which is no zombie."""
    return not _field(pid, "State").startswith(("Z", "X")) and bool(_field(pid, "Pid"))


def is_stopped(pid: int) -> bool:
    """Whether the process is suspended by SIGSTOP or a debugger."""
    return _field(pid, "State").startswith(("T", "t"))


def name(pid: int) -> str:
    """The name that a process has given itself, or that of its program. "" if there is no such process."""
    return _field(pid, "Name")


def is_in_container(pid: int, container: str) -> bool:
    """Whether the process belongs to the container with this id."""
    try:
        return container in (_PROC / str(pid) / "cgroup").read_text("utf-8", "replace")
    except OSError:
        return False


def pid_inside(pid: int) -> int:
    """The pid of a process in its own namespace; 0 if there is no such process."""
    pids = _field(pid, "NSpid").split()
    return int(pids[-1]) if pids else 0


def users_of(pid: int) -> set[int]:
    """The users of a process: real, effective and saved. Empty if there is no such process."""
    return {int(user) for user in _field(pid, "Uid").split()}


def users() -> dict[int, set[int]]:
    """The users of every process, by pid. Without zombies."""
    by_pid: dict[int, set[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and lives(int(entry.name)):
            by_pid[int(entry.name)] = users_of(int(entry.name))
    return by_pid


def program(pid: int) -> str:
    """The program of a process, with its script or module where it is Python, for display; "" if it cannot be read. Not
    its arguments: they may be secrets, or a whole program."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    name, *words = raw.decode("utf-8", "replace").split("\0")
    shown = [name]
    if name.rpartition("/")[2].startswith("python"):
        shown += takewhile(lambda word: word in ("-m", "-u"), words)
        shown += [word for word in words[len(shown) - 1 :][:1] if not word.startswith("-")]
    return " ".join(shown)


def _field(pid: int, name: str) -> str:
    """A field of /proc/PID/status; "" if there is no such process or field."""
    try:
        text = _read(f"{_PROC}/{pid}/status").decode("utf-8", "replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""


def _read(path: str) -> bytes:
    """The content of a file, whose path is not worth an object: each replica has several, every few seconds. Raises
    OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while block := os.read(file, 1 << 14):
            content += block
        return content
    finally:
        os.close(file)
