"""What /proc says of processes: who descends from whom, who listens to which signal."""

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
