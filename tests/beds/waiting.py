"""Waits for conditions. One patience for all, which a busy machine does not exhaust."""

import time
from collections.abc import Callable

PATIENCE_S = 180.0
_SHORTEST_S, _LONGEST_S = 0.005, 0.1


def until(holds: Callable[[], object], what: Callable[[], str] | str = "it", patience_s: float = PATIENCE_S) -> str:
    """Wait until the condition holds; its value as a string. The failure says `what` was awaited."""
    deadline, pause_s = time.monotonic() + patience_s, _SHORTEST_S
    while not (value := holds()):
        if time.monotonic() > deadline:
            awaited = what if isinstance(what, str) else what()
            raise AssertionError(f"waited in vain for {patience_s:g} s: {awaited}")
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_S)
    return str(value)


def until_up(
    holds: Callable[[], bool],
    failure: Callable[[], str],
    error: type[Exception],
    what: str = "it is up",
    patience_s: float = 120.0,
) -> None:
    """Wait for programs of a bed. Raises the error with the failure, once there is one, or with `what` was awaited."""
    deadline = time.monotonic() + patience_s
    while not holds():
        words = failure()
        if words or time.monotonic() > deadline:
            raise error(words or f"{what}: not within {patience_s:g} s")
        time.sleep(_LONGEST_S / 2)
