"""Process information from /proc: descendants, CPU time, memory, signal handlers."""

import os
import signal
from pathlib import Path

_PROC = Path("/proc")


def tree(root: int) -> tuple[int, ...]:
    """The pids of `root` and all its descendants, parents first; without processes that have ended."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            parent = _field(int(entry.name), "PPid")
            if parent:
                children.setdefault(int(parent), []).append(int(entry.name))
    pids = [root] if _field(root, "Pid") else []
    for pid in pids:
        pids += sorted(children.get(pid, ()))
    return tuple(pids)


def cpu_s(pid: int, *, own: bool = True) -> float:
    """Seconds of CPU time of a process and the children that it has reaped; without `own` of those children alone.
    0.0 if there is no such process."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
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


def is_stopped(pid: int) -> bool:
    """Whether the process is suspended by SIGSTOP or a debugger."""
    return _field(pid, "State").startswith(("T", "t"))


def is_in_container(pid: int, container: str) -> bool:
    """Whether the process belongs to the container with this id."""
    try:
        return container in (_PROC / str(pid) / "cgroup").read_text("utf-8", "replace")
    except OSError:
        return False


def command(pid: int) -> str:
    """The command line of a process, for display; "" if it cannot be read."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _field(pid: int, name: str) -> str:
    """A field of /proc/PID/status; "" if there is no such process or field."""
    try:
        text = (_PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""
