"""Processes that carry our mark, or supervise one that does, and whose run nobody knows any more."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.host import machine_id as here
from trainyard_agent.host import process_tags as marks
from trainyard_agent.runtimes.process import supervisor as shim
from trainyard_protocol.health import Finding

_TEMPORARY = re.compile(r"(/.+)/(?:runs|environments)/([A-Za-z0-9_-]{1,64})(?:/[^/]+)?/tmp")
_SUPERVISED = re.compile(r"(/.+)/runs/([A-Za-z0-9_-]{1,64})/[^/]+")
_SHOWN = 60  # characters of a command line
_END_S = 10.0
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Orphan:
    """`started` (in ticks of the kernel's clock) tells it from a later process with the same number."""

    pid: int
    started: str
    run_id: str
    command: str
    supervisor: bool = False


def orphans(state_dir: Path, proc: Path = Path("/proc")) -> list[Orphan]:
    """Of this state directory, or of one that is gone."""
    entries = (entry for entry in proc.iterdir() if entry.name.isdecimal())
    return [orphan for entry in entries if (orphan := _orphan(entry, state_dir)) is not None]


def findings(found: list[Orphan], fix: bool) -> Iterator[Finding]:
    if not found:
        yield Finding(check="processes", status="ok", found="No process is left of a run that is over.")
    for orphan in sorted(found, key=lambda one: (one.run_id, not one.supervisor, one.pid)):
        what = "The supervisor" if orphan.supervisor else "The process"
        name = f"{what} {orphan.pid} ({orphan.command})"
        trouble = _end(orphan) if fix else ""
        if fix and not trouble:
            done = f"{name} of run {orphan.run_id[:12]} was killed."
            yield Finding(check="processes", status="fixed", found=done)
            continue
        yield Finding(
            check="processes",
            status="problem",
            found=f"{name} is left of run {orphan.run_id[:12]}, which nobody knows any more.",
            meaning="It uses CPUs, memory and devices that are given to others.",
            advice=f"It could not be ended: {trouble}." if trouble else "`trainyard doctor --fix` kills it.",
            fixable=not trouble,
        )


def _orphan(entry: Path, state_dir: Path) -> Orphan | None:
    try:
        words = _words(entry / "cmdline")
        run = _supervised(words)
        supervisor = run is not None
        if run is None:
            run = _marked(_words(entry / "environ"))
        if run is None or not _is_orphaned(entry, *run, state_dir):
            return None
        command = " ".join(words)
        shown = command if len(command) <= _SHOWN else f"{command[: _SHOWN - 3]}..."
        return Orphan(int(entry.name), _started(entry), run[1], shown, supervisor)
    except OSError:  # it ended, or is another user's
        return None


def _supervised(words: list[str]) -> tuple[Path, str] | None:
    """The state directory and the run of a supervisor."""
    if shim.__file__ not in words[:-1]:
        return None
    match = _SUPERVISED.fullmatch(words[words.index(shim.__file__) + 1])
    return (Path(match[1]), match[2]) if match else None


def _marked(variables: list[str]) -> tuple[Path, str] | None:
    """The same of a process with our mark. Where it lives is told by its TMPDIR: the mark names only its run."""
    values = dict(variable.partition("=")[::2] for variable in variables)
    run_id = values.get(marks.MARK, "").partition("/")[0]
    match = _TEMPORARY.fullmatch(values.get("TMPDIR", ""))
    return (Path(match[1]), run_id) if run_id and match and match[2] == run_id else None


def _is_orphaned(entry: Path, home: Path, run_id: str, state_dir: Path) -> bool:
    """Raises OSError for what may not be looked at: then it is not ours to end."""
    inside = here.seen_by(entry, home)
    (entry / "root").readlink()
    if home != state_dir and inside.exists():
        return False  # another installation's
    return not (
        (inside / "runs" / run_id / "run.json").exists() or (inside / "environments" / run_id).is_dir()
    )


def _end(orphan: Orphan) -> str:
    """SIGKILL; why it is still there, or "". By a descriptor: its number may be another's by now."""
    try:
        descriptor = os.pidfd_open(orphan.pid)
    except ProcessLookupError:
        return ""
    except OSError as error:
        return str(error.strerror)
    entry = Path("/proc") / str(orphan.pid)
    try:
        if _started(entry) != orphan.started:
            return ""
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        deadline = time.monotonic() + _END_S
        while _state(entry) not in ("", "Z", "X"):
            if time.monotonic() > deadline:
                return (
                    "SIGKILL does not end it: it hangs in the kernel, and only a restart of the machine helps"
                )
            time.sleep(_PAUSE_S)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as error:
        return str(error.strerror)
    finally:
        os.close(descriptor)
    return ""


def _words(path: Path) -> list[str]:
    return [word for word in path.read_bytes().decode("utf-8", "surrogateescape").split("\0") if word]


def _started(entry: Path) -> str:
    return _fields(entry)[19]


def _state(entry: Path) -> str:
    with contextlib.suppress(OSError):
        return _fields(entry)[0]
    return ""


def _fields(entry: Path) -> list[str]:
    """Of /proc/PID/stat, from the state on: before it is the name, which may hold anything."""
    return (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
