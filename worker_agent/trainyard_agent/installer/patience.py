"""Pauses between attempts to reach what is away: a registry, a package index, a storage, the server."""

from __future__ import annotations

import time

PATIENCE_S = 600.0
"""The time from the first failure on after which an attempt is the last one."""

_FIRST_S, _LONGEST_S = 1.0, 30.0


class Patience:
    """The wait for one thing. Each pause is twice as long as the one before."""

    def __init__(self, seconds: float = PATIENCE_S) -> None:
        self.seconds = seconds
        self._pause_s = _FIRST_S
        self._since: float | None = None

    def pause_s(self) -> float:
        """The pause after a failure; 0 if no attempt follows. The last attempt is at the end of the time."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left_s = self._since + self.seconds - now
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_S)
        return max(0.0, min(pause_s, left_s))

    @property
    def waited_s(self) -> float:
        """Seconds since the first failure; 0 without one."""
        return 0.0 if self._since is None else time.monotonic() - self._since
