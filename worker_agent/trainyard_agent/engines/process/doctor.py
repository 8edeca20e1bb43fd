"""Processes with our tag, and supervisors, whose run no longer exists."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trainyard_agent.host import machine_id, process_tags
from trainyard_agent.runtimes import start_supervisor, supervisor
from trainyard_protocol.views.health import Finding

_TEMPORARY = re.compile(r"(/.+)/(?:runs|environments)/([A-Za-z0-9_-]{1,64})(?:/[^/]+)?/tmp")
_SUPERVISED = re.compile(r"(/.+)/runs/([A-Za-z0-9_-]{1,64})/[^/]+")
_SUPERVISORS = (start_supervisor.__file__, supervisor.__file__)  # the latter is the script of older ones
_SHOWN = 60  # characters of a command line
_END_S = 10.0
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class OrphanProcess:
    """A process without a run. `started` (kernel clock ticks) distinguishes it from a later one with its pid."""

    pid: int
    started: str
    run_id: str
    command: str
    supervisor: bool = False


def orphans(state_dir: Path, proc: Path = Path("/proc")) -> list[OrphanProcess]:
    """The orphans of this state directory and of removed ones."""
    entries = (entry for entry in proc.iterdir() if entry.name.isdecimal())
    return [orphan for entry in entries if (orphan := _orphan(entry, state_dir)) is not None]


def findings(orphans: list[OrphanProcess], fix: bool) -> Iterator[Finding]:
    if not orphans:
        yield Finding(check="processes", status="ok", found="There are no orphaned processes.")
    for orphan in sorted(orphans, key=lambda one: (one.run_id, not one.supervisor, one.pid)):
        what = "The supervisor" if orphan.supervisor else "The process"
        name = f"{what} {orphan.pid} ({orphan.command})"
        failure = _end(orphan) if fix else ""
        if fix and not failure:
            done = f"{name} of run {orphan.run_id[:12]} was killed."
            yield Finding(check="processes", status="fixed", found=done)
            continue
        yield Finding(
            check="processes",
            status="problem",
            found=f"{name} is orphaned: its run {orphan.run_id[:12]} no longer exists.",
            meaning="It uses CPUs, memory and devices that are assigned to others.",
            advice=f"It could not be killed: {failure}." if failure else "`trainyard doctor --fix` kills it.",
            fixable=not failure,
        )


def _orphan(entry: Path, state_dir: Path) -> OrphanProcess | None:
    try:
        words = _words(entry / "cmdline")
        run = _supervised(words)
        is_supervisor = run is not None
        if run is None:
            run = _tagged(_words(entry / "environ"))
        if run is None or not _is_orphaned(entry, *run, state_dir):
            return None
        command = " ".join(words)
        shown = command if len(command) <= _SHOWN else f"{command[: _SHOWN - 3]}..."
        return OrphanProcess(int(entry.name), _started(entry), run[1], shown, is_supervisor)
    except OSError:  # it ended, or is another user's
        return None


def _supervised(words: list[str]) -> tuple[Path, str] | None:
    """The state directory and run of a supervisor; None for another process."""
    for word, directory in pairwise(words):
        if word in _SUPERVISORS and (match := _SUPERVISED.fullmatch(directory)):
            return Path(match[1]), match[2]
    return None


def _tagged(variables: list[str]) -> tuple[Path, str] | None:
    """The same for a process with our tag. The tag has only its run; TMPDIR has its state directory."""
    values = dict(variable.partition("=")[::2] for variable in variables)
    run_id = values.get(process_tags.TAG, "").partition("/")[0]
    match = _TEMPORARY.fullmatch(values.get("TMPDIR", ""))
    return (Path(match[1]), run_id) if run_id and match and match[2] == run_id else None


def _is_orphaned(entry: Path, agent_dir: Path, run_id: str, state_dir: Path) -> bool:
    """Whether its run no longer exists. Raises OSError for a process that this user may not inspect."""
    inside = machine_id.path_in_process(entry, agent_dir)
    (entry / "root").readlink()
    if agent_dir != state_dir and inside.exists():
        return False  # of another installation
    return not (
        (inside / "runs" / run_id / "run.json").exists() or (inside / "environments" / run_id).is_dir()
    )


def _end(orphan: OrphanProcess) -> str:
    """SIGKILL a process, by pidfd because its pid may be reused. Returns the error, or ""."""
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
                return "it survives SIGKILL because it hangs in the kernel; restart the machine"
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
    """The fields of /proc/PID/stat from the state on, after the name, which may hold any character."""
    return (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
