"""Directories of runs, as the runtimes of processes and of Slurm keep them: one for each, with the id of its run."""

import time
from collections.abc import Callable
from pathlib import Path

from trainyard_agent.host import process_tags
from trainyard_agent.host.files import remove_tree
from trainyard_agent.runtimes.record_files import RecordFiles

REMOVED = ".removed-"
"""Of the names of directories whose removal has begun."""


def remove_directory(run: Path, files: RecordFiles) -> None:
    """Remove the directory of a run, at once for readers of its logs. What cannot be removed is warned of."""
    removed = run.with_name(f"{REMOVED}{run.name}.{time.time_ns()}")  # an earlier removal may have failed
    run.rename(removed)
    try:
        remove_tree(removed)
    except OSError as error:
        _warn(removed, files, error)


def remove_unlaunched(
    runs: Path, files: RecordFiles, is_launched: Callable[[str], bool], remove: Callable[[str], None]
) -> None:
    """Remove, for an agent that starts, the runs below `runs` that were not launched, and the rest of those whose
    removal had begun. One that cannot be removed is warned of; the others are not affected."""
    for path in sorted(runs.iterdir()):
        try:
            if path.name.startswith(REMOVED):
                remove_tree(path)
            elif not is_launched(path.name):
                remove(path.name)
        except (OSError, process_tags.StillAlive) as error:
            _warn(path, files, error)


def _warn(path: Path, files: RecordFiles, error: Exception) -> None:
    files.warn_once(f"{path} cannot be removed; the next agent tries again: {error}")
