"""The doctor's search for orphans: what an engine has of runs that are gone, each with the command that removes it.

An engine says what is its own. An orphan is in this state directory, has its path or its agent's id, or belongs to a
removed state directory of this machine; what may belong to another installation is none. Beside an agent, which creates
and removes things all the time, only what stays is an orphan. The doctor takes no lock, and removes nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainyard_agent.host.files import is_locked
from trainyard_agent.lease.watchdog_files import AGENT_LOCK
from trainyard_agent.runtimes.base import EngineUnavailable, Orphan
from trainyard_protocol.answers.health import Finding

_SETTLE_S = 1.0

Scan = Callable[[], list[Orphan]]
"""The orphans of an engine. Raises EngineUnavailable."""


def orphan_findings(scans: Sequence[Scan], state_dir: Path) -> Iterator[Finding]:
    orphans, failures = _all(scans)
    if orphans and is_locked(state_dir / AGENT_LOCK):
        time.sleep(_SETTLE_S)
        stayed, failures = _all(scans)
        orphans = [orphan for orphan in orphans if orphan in stayed]
    for failure in failures:
        yield Finding(check="orphans", status="unknown", found=f"Orphans could not be searched for: {failure}.")
    for orphan in orphans:
        run = f" of the run {orphan.run_id[:12]}" if orphan.run_id else ""
        yield Finding(
            check="orphans",
            status="problem",
            found=f"The {orphan.what}{run} is orphaned: {orphan.why}.",
            meaning=orphan.meaning,
            command=orphan.remove,
        )
    if not orphans and not failures:
        yield Finding(check="orphans", status="ok", found="Nothing is left of runs that are gone.")


def _all(scans: Sequence[Scan]) -> tuple[list[Orphan], list[str]]:
    """The orphans, and why an engine could not list its own."""
    orphans: list[Orphan] = []
    failures = []
    for scan in scans:
        try:
            orphans += scan()
        except EngineUnavailable as error:
            failures.append(str(error).rstrip("."))
    return orphans, failures
