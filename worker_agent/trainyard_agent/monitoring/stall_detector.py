"""Stall detection: whether a replica that reports its steps has made no progress for too long. Pure.

A replica is compared with its own history: it stalls when a step takes many times longer than the recent ones. Any
progress event but a heartbeat counts, so an evaluation that reports itself is no stall. Idle time is counted only while
the agent runs and has read all of the replica's log: clock changes, late reads and suspended machines cause no stall.
"""

from dataclasses import dataclass, field
from datetime import datetime

from trainyard_protocol.lines.progress import FINAL_EVENTS, HEARTBEAT, START, ProgressEvent
from trainyard_protocol.wire.observations import Stall
from trainyard_protocol.wire.sync import StallPolicy

ADVANCES = 3
"""Step changes before the history is used."""

_BLOCK = 500  # the history is the last one to two blocks of intervals, so a slow one is forgotten
_MIN_POLLS = 4  # without progress, at least: bounds what one pause of the agent itself adds


@dataclass(slots=True)
class StepHistory:
    """The progress of one replica, from its log. `stacks`: the signal on which it writes its stacks."""

    step: int | None = None
    since: datetime | None = None
    stacks: str = ""
    idle_s: float = 0.0
    advances: int = 0
    _ended: bool = False
    _last_at: datetime | None = None
    _longest_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _intervals: int = 0

    @property
    def longest_s(self) -> float:
        """The longest recent interval between two progress events, in seconds."""
        return max(self._longest_s)

    def add(self, event: ProgressEvent, at: datetime) -> None:
        """Add a progress event that was printed at `at`, by the machine's clock."""
        if event.event == START:
            self.stacks = event.stacks
            return
        advances = event.step is not None and event.step != self.step
        if event.event == HEARTBEAT and not advances:
            return
        if advances:
            self.advances += self.step is not None
            self.step, self.since = event.step, at
        if self._last_at is not None:
            self._add_interval((at - self._last_at).total_seconds())
        self._last_at = at
        self.idle_s = 0.0
        self._ended = event.event in FINAL_EVENTS or (event.steps is not None and event.step == event.steps)

    def add_idle(self, seconds: float, policy: StallPolicy) -> None:
        """Add idle time: `seconds` since the log was last read to its end, as it is now."""
        self.idle_s += min(max(seconds, 0.0), self.limit_s(policy) / _MIN_POLLS)

    def limit_s(self, policy: StallPolicy) -> float:
        """The idle time that is a stall, in seconds."""
        if policy.limit_s is not None:
            return policy.limit_s
        return max(policy.least_s, policy.factor * self.longest_s)

    def is_judged(self, policy: StallPolicy) -> bool:
        """Whether it has reported enough steps, and has not finished."""
        needed = ADVANCES if policy.limit_s is None else 1
        return self.advances >= needed and not self._ended

    def is_stalled(self, policy: StallPolicy) -> bool:
        return self.is_judged(policy) and self.idle_s > self.limit_s(policy)

    def is_idle(self, seconds: float) -> bool:
        """Whether it has reported a step, has not finished, and was idle for `seconds`."""
        return self.step is not None and not self._ended and self.idle_s >= seconds

    def stall(self, policy: StallPolicy) -> Stall:
        """The stall to report. The replica must have reported a step."""
        assert self.step is not None
        assert self.since is not None
        return Stall(
            step=self.step,
            since=self.since,
            limit_s=self.limit_s(policy),
            for_s=round(self.idle_s, 3),
            longest_s=round(self.longest_s, 3),
        )

    def _add_interval(self, seconds: float) -> None:
        if self._intervals % _BLOCK == 0:
            self._longest_s = [self._longest_s[1], 0.0]
        self._intervals += 1
        self._longest_s[1] = max(self._longest_s[1], seconds)
