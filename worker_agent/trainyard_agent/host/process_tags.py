"""Finding processes by the mark that their environment carries, whoever their parent is by now.

The mark is inherited by every descendant, through setsid and double forks; only a process that cleared its
environment on purpose has none.
"""

import os
import signal
import time
from pathlib import Path

MARK = "TRAINYARD_REPLICA"
_PAUSE_S = 0.01


class StillAlive(Exception):
    """Processes that survived SIGKILL for a long time: they hang in the kernel."""


def mark(run_id: str, what: str) -> dict[str, str]:
    """The variable to set for everything started for `what` (a task name, `staging`) of a run."""
    return {MARK: f"{run_id}/{what}"}


def marked(run_id: str, what: str = "") -> list[int]:
    """The processes that carry the mark of `what`, or of anything of the run. Zombies are not among them."""
    wanted = f"{MARK}={run_id}/{what}".encode() + (b"\0" if what else b"")
    return [int(entry.name) for entry in Path("/proc").iterdir() if _carries(entry, wanted)]


def kill_marked(run_id: str, what: str = "", deadline_s: float = 10.0) -> None:
    """SIGKILL them until none is left. None there: nothing happens. Raises StillAlive after `deadline_s`."""
    give_up_at = time.monotonic() + deadline_s
    while pids := marked(run_id, what):
        if time.monotonic() > give_up_at:
            raise StillAlive(f"processes {', '.join(map(str, pids))} of run {run_id} cannot be killed")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended in between
        time.sleep(_PAUSE_S)


def _carries(entry: Path, wanted: bytes) -> bool:
    if not entry.name.isdecimal():
        return False
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:  # ended, or another user's
        return False
    return b"\0" + wanted in b"\0" + environment
