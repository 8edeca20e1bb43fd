"""The doctor's looks at orphans: beside an agent, only what stays is one.

An orphan is in this state directory, has its path or its agent's id, or belongs to a removed state directory of this
machine. What may belong to another installation is never touched. The doctor takes no lock.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from trainyard_agent.host.files import is_locked
from trainyard_agent.lease.watchdog_files import AGENT_LOCK
from trainyard_protocol.views.health import Finding

_SETTLE_S = 1.0  # a running agent creates and removes things all the time

_T = TypeVar("_T")


def settled(state_dir: Path, scan: Callable[[], list[_T]]) -> list[_T]:
    """The results of a scan; beside an agent only those that a second scan has too."""
    first = scan()
    if not first or not is_locked(state_dir / AGENT_LOCK):
        return first
    time.sleep(_SETTLE_S)
    second = scan()
    return [orphan for orphan in first if orphan in second]


def orphan_findings(
    check: str, orphans: dict[str, Callable[[], str]], meaning: str, advice: str, fix: bool, nothing: str = ""
) -> Iterator[Finding]:
    """A finding for each orphan, given by a sentence about it; its function removes it, and returns why that failed or
    "". `advice` says what does; `nothing` is the finding where there is none."""
    if not orphans and nothing:
        yield Finding(check=check, status="ok", found=nothing)
    for orphan, remove in orphans.items():
        failure = remove() if fix else ""
        if fix and not failure:
            yield Finding(check=check, status="fixed", found=f"{orphan} It was removed.")
            continue
        yield Finding(
            check=check,
            status="problem",
            found=orphan,
            meaning=meaning,
            advice=f"It could not be removed: {failure}." if failure else advice,
            fixable=not failure,
        )
