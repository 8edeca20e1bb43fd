"""`python -m trainyard_agent --doctor`: finds and removes orphaned processes, containers, rules and directories.

It works beside a running agent, and takes no lock. An orphan is in this state directory, has its path or its agent's
id, or belongs to a removed state directory of this machine. What may belong to another installation is never touched.
"""

import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import TypeVar

from trainyard_agent.doctor import directories
from trainyard_agent.engines.docker import doctor as containers
from trainyard_agent.engines.docker.network import doctor as firewall
from trainyard_agent.engines.process import doctor as processes
from trainyard_agent.host.files import is_locked
from trainyard_protocol.views.health import Finding

_SETTLE_S = 1.0  # a running agent creates and removes things all the time

_T = TypeVar("_T")


def examine(state_dir: Path, live_runs: Set[str] | None, fix: bool) -> list[Finding]:
    """Find orphans; `fix` removes them. `live_runs` have not ended on the server; None: it was not asked."""
    alive = is_locked(state_dir / "agent.lock")

    def settled(scan: Callable[[], list[_T]]) -> list[_T]:
        """The results of a scan; beside an agent only those that a second scan finds again."""
        found = scan()
        if found and alive:
            time.sleep(_SETTLE_S)
            again = scan()
            found = [one for one in found if one in again]
        return found

    return [
        *processes.findings(settled(lambda: processes.orphans(state_dir)), fix),
        *containers.findings(state_dir, settled, fix),
        *firewall.findings(settled, fix),
        *directories.findings(
            settled(lambda: directories.orphans(state_dir, live_runs)), fix, complete=live_runs is not None
        ),
    ]
