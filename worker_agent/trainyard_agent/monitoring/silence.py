"""Silence: whether a run has printed nothing and used no CPU for too long. Pure.

That is how a program looks that waits for what will never come, whether it reports steps or not. One that only prints
nothing may compute, and one that only uses no CPU may wait for a device. Time is counted as for stalls: only while the
agent runs and has read all logs.
"""

from collections.abc import Callable, Mapping

from trainyard_agent.runtimes.use import ReplicaUse

_IDLE_CORES = 0.05  # of one replica: threads that poll use a few hundredths
_MIN_POLLS = 4  # bounds what one pause of the agent itself adds

Usage = Callable[[], Mapping[str, ReplicaUse] | None]
"""The use of every replica of the run by task; None where it cannot be measured."""


class RunSilence:
    """The silence of one run. CPU is measured twice in each limit."""

    def __init__(self) -> None:
        self.is_silent = False
        self.idle_s = 0.0
        self._lines = -1
        self._before: tuple[float, Mapping[str, ReplicaUse]] | None = None

    def add(self, lines: int, seconds: float, limit_s: float, usage: Usage) -> None:
        """Add a poll: the run has printed that many lines by now, `seconds` after the last poll."""
        if lines != self._lines:
            self._lines = lines
            self._restart()
            return
        self.idle_s += min(max(seconds, 0.0), limit_s / _MIN_POLLS)
        since = 0.0 if self._before is None else self._before[0]
        if self.idle_s < since + limit_s / 2:
            return
        use = usage()
        if use is None or (self._before is not None and self._is_busy(*self._before, use)):
            self._restart()
        elif self._before is not None:
            self.is_silent = self.is_silent or self.idle_s >= limit_s
        self._before = None if use is None else (self.idle_s, use)

    def expect(self, lines: int) -> None:
        """The lines up to there are no sign of life: somebody else made the program print them."""
        self._lines = lines

    def _restart(self) -> None:
        self.is_silent, self.idle_s, self._before = False, 0.0, None

    def _is_busy(self, since: float, before: Mapping[str, ReplicaUse], now: Mapping[str, ReplicaUse]) -> bool:
        if before.keys() != now.keys():
            return True
        elapsed = self.idle_s - since
        return any(
            (use.cpu_s - before[task].cpu_s) / elapsed > _IDLE_CORES if use.cores is None else use.cores > _IDLE_CORES
            for task, use in now.items()
        )
