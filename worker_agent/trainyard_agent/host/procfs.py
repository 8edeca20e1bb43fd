"""What /proc says of processes: who descends from whom, who listens to which signal."""

import os
import signal
from pathlib import Path

_PROC = Path("/proc")


def tree(root: int) -> tuple[int, ...]:
    """`root` and every process below it, parents first. A process that is gone is not among them."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            parent = _field(int(entry.name), "PPid")
            if parent:
                children.setdefault(int(parent), []).append(int(entry.name))
    found = [root] if _field(root, "Pid") else []
    for pid in found:
        found += sorted(children.get(pid, ()))
    return tuple(found)


def cpu_s(pid: int, *, own: bool = True) -> float:
    """The seconds of CPU time that a process and those that it has buried have used; without `own` these alone.
    0.0 where there is no such process."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    # utime, stime, cutime, cstime: fields 14 to 17 of proc(5), where the name, which may hold blanks, is the second.
    return sum(map(int, fields[11 if own else 13 : 15])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """What of a process is in memory. 0 where there is no such process."""
    size = _field(pid, "VmRSS").split()
    return int(size[0]) << 10 if size else 0


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether it has a handler for the signal, so that the signal does not end it."""
    mask = _field(pid, "SigCgt")
    return bool(mask) and bool(int(mask, 16) >> (number - 1) & 1)


def is_stopped(pid: int) -> bool:
    """By SIGSTOP, or a debugger."""
    return _field(pid, "State").startswith(("T", "t"))


def is_in_container(pid: int, container: str) -> bool:
    """Whether it is a process of the container with this id."""
    try:
        return container in (_PROC / str(pid) / "cgroup").read_text("utf-8", "replace")
    except OSError:
        return False


def command(pid: int) -> str:
    """Its command line, to be shown; "" if it cannot be read."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _field(pid: int, name: str) -> str:
    """A field of /proc/PID/status; "" where there is no such process or field."""
    try:
        text = (_PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""
