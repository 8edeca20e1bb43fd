"""`python -m trainyard_agent --doctor`: what is left here of runs that nobody knows any more, and its removal.

It works beside an agent that runs, and takes no lock. What it calls ours is ours for certain: it lies in this state
directory, carries its path or its agent's id, or belongs to a state directory of this machine that is gone. Whatever
might be another installation's is never touched.
"""

import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import TypeVar

from trainyard_agent.doctor import containers, directories, processes
from trainyard_agent.host.files import is_locked
from trainyard_protocol.health import Finding

_SETTLE_S = 1.0  # an agent at work makes and removes things all the time

_T = TypeVar("_T")


def examine(state_dir: Path, live_runs: Set[str] | None, fix: bool) -> list[Finding]:
    """`live_runs` are those that the server knows and that are not over; None where it could not be asked."""
    alive = is_locked(state_dir / "agent.lock")

    def settled(look: Callable[[], list[_T]]) -> list[_T]:
        """What was there a moment ago and still is."""
        found = look()
        if found and alive:
            time.sleep(_SETTLE_S)
            again = look()
            found = [one for one in found if one in again]
        return found

    return [
        *processes.findings(settled(lambda: processes.orphans(state_dir)), fix),
        *containers.findings(state_dir, settled, fix),
        *directories.findings(
            settled(lambda: directories.leftovers(state_dir, live_runs)), fix, complete=live_runs is not None
        ),
    ]
