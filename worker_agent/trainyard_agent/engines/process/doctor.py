"""Processes with our tag, and supervisors, whose run no longer exists."""

import re
from itertools import pairwise
from pathlib import Path

from trainyard_agent.engines.contract import ENVIRONMENTS, has_run
from trainyard_agent.host import process_tags
from trainyard_agent.runtimes import supervisor
from trainyard_agent.runtimes.base import Orphan
from trainyard_agent.runtimes.run_directories import is_run_id

_SUPERVISED = re.compile(r"(/.+)/runs/([A-Za-z0-9_-]{1,64})/[^/]+")
_SHOWN = 60  # characters of a command line
_SUPERVISOR = "supervisor"


def orphans(state_dir: Path) -> list[Orphan]:
    """Those of this state directory and of removed ones; a supervisor before its program."""
    entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    found = [orphan for entry in entries if (orphan := _orphan(entry, state_dir)) is not None]
    return sorted(found, key=lambda orphan: (orphan.run_id, not orphan.what.startswith(_SUPERVISOR), orphan.what))


def _orphan(entry: Path, state_dir: Path) -> Orphan | None:
    try:
        words = _words(entry / "cmdline")
        supervised = _supervised(words)
        run = supervised or _tagged(_words(entry / "environ"))
        if run is None or not _is_orphaned(entry, *run, state_dir):
            return None
    except OSError:  # it ended, or is another user's
        return None
    command = " ".join(words)
    shown = command if len(command) <= _SHOWN else f"{command[: _SHOWN - 3]}..."
    what = f"{_SUPERVISOR if supervised else 'process'} {entry.name} ({shown})"
    return Orphan(what, run[1], "the run does not exist", f"kill -KILL {entry.name}")


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
    inside = entry / "root" / agent_dir.relative_to("/")  # as the process sees it
    (entry / "root").readlink()
    if agent_dir != state_dir and inside.exists():
        return False  # of another installation
    return not has_run(inside, run_id, "runs", ENVIRONMENTS)


def _words(path: Path) -> list[str]:
    return [word for word in path.read_bytes().decode("utf-8", "surrogateescape").split("\0") if word]
