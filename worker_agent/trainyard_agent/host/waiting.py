"""A wait for a condition. Standard library only."""

import time
from collections.abc import Callable


def deadline_in(seconds: float) -> float:
    """The (monotonic) time in so many seconds."""
    return time.monotonic() + seconds


def wait_until(
    condition: Callable[[], object], deadline: float, interval: float, pause: Callable[[float], object] = time.sleep
) -> bool:
    """Wait until the condition holds, looking every `interval` seconds. False if it does not by the (monotonic)
    deadline. `pause` waits for so many seconds, or less."""
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause(interval)
    return True
