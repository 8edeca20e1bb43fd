"""Waits for conditions. One patience for all, which a busy machine does not exhaust."""

import time
from collections.abc import Callable

PATIENCE_S = 180.0
_SHORTEST_S, _LONGEST_S = 0.005, 0.1


def until(
    holds: Callable[[], object], what: Callable[[], str] | str = "it", patience_s: float = PATIENCE_S
) -> str:
    """Wait until the condition holds; its value as a string. The failure says `what` was awaited."""
    deadline, pause_s = time.monotonic() + patience_s, _SHORTEST_S
    while not (value := holds()):
        if time.monotonic() > deadline:
            awaited = what if isinstance(what, str) else what()
            raise AssertionError(f"waited in vain for {patience_s:g} s: {awaited}")
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_S)
    return str(value)
