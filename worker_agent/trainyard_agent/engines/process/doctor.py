"""Processes with our tag, and supervisors, whose run no longer exists."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil

from trainyard_agent.engines.examining import orphan_findings, settled
from trainyard_agent.host import machine_id, process_tags
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.runtimes import supervisor
from trainyard_agent.runtimes.run_directories import is_run_id
from trainyard_protocol.views.health import Finding

_SUPERVISED = re.compile(r"(/.+)/runs/([A-Za-z0-9_-]{1,64})/[^/]+")
_SHOWN = 60  # characters of a command line
_END_S, _PAUSE_S = 10.0, 0.02
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True, slots=True)
class OrphanProcess:
    """A process without a run. `started` (kernel clock ticks) distinguishes it from a later one with its pid."""

    pid: int
    started: str
    run_id: str
    command: str
    supervisor: bool = False

    @property
    def words(self) -> str:
        what = "supervisor" if self.supervisor else "process"
        run = self.run_id[:12]
        return f"The {what} {self.pid} ({self.command}) is orphaned: its run {run} no longer exists."


def findings(state_dir: Path, fix: bool) -> Iterator[Finding]:
    orphans = settled(state_dir, lambda: _orphans(state_dir))
    orphans.sort(key=lambda orphan: (orphan.run_id, not orphan.supervisor, orphan.pid))
    return orphan_findings(
        "processes",
        {orphan.words: partial(_end, orphan) for orphan in orphans},
        "It uses CPUs, memory and devices that are assigned to others.",
        "`trainyard doctor --fix` kills it.",
        fix,
        "There are no orphaned processes.",
    )


def _orphans(state_dir: Path) -> list[OrphanProcess]:
    """The orphans of this state directory and of removed ones."""
    entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [orphan for entry in entries if (orphan := _orphan(entry, state_dir)) is not None]


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
        if word == supervisor.__file__ and (match := _SUPERVISED.fullmatch(directory)):
            return Path(match[1]), match[2]
    return None


def _tagged(variables: list[str]) -> tuple[Path, str] | None:
    """The same for a process with our tag."""
    values = dict(variable.partition("=")[::2] for variable in variables)
    run_id = values.get(process_tags.TAG, "").partition("/")[0]
    state_dir = values.get(process_tags.AGENT, "")
    return (Path(state_dir), run_id) if is_run_id(run_id) and state_dir.startswith("/") else None


def _is_orphaned(entry: Path, agent_dir: Path, run_id: str, state_dir: Path) -> bool:
    """Whether its run no longer exists. Raises OSError for a process that this user may not inspect."""
    inside = machine_id.path_in_process(entry, agent_dir)
    (entry / "root").readlink()
    if agent_dir != state_dir and inside.exists():
        return False  # of another installation
    return not ((inside / "runs" / run_id / "run.json").exists() or (inside / "environments" / run_id).is_dir())


def _end(orphan: OrphanProcess) -> str:
    """SIGKILL a process, unless another one has its pid by now. Returns the error, or ""."""
    try:
        process = psutil.Process(orphan.pid)
        if _started(Path("/proc") / str(orphan.pid)) != orphan.started:
            return ""
        process.kill()  # compares the time of its start first: the pid may be another one's by now
        if not wait_until(lambda: process.status() in _DEAD, deadline_in(_END_S), _PAUSE_S):
            return "it survives SIGKILL because it hangs in the kernel; restart the machine"
    except (psutil.NoSuchProcess, FileNotFoundError):
        return ""
    except (psutil.AccessDenied, OSError) as error:
        return str(error)
    return ""


def _words(path: Path) -> list[str]:
    return [word for word in path.read_bytes().decode("utf-8", "surrogateescape").split("\0") if word]


def _started(entry: Path) -> str:
    """The start of a process, of the fields of its `stat` behind the name, which may hold any character."""
    return (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
