"""When a replica that reports its steps stands still for too long. Pure: lines and seconds go in, a `Stall` comes out.

A replica is measured by its own history: it stands still when it takes many times longer than it ever did lately.
Any structured line but a heartbeat is a sign of it, so a long evaluation that tells of itself is none. How long ago
the last sign was is counted in seconds in which the agent was there to look and had read all that the replica had
written: neither a clock that is set, nor a log that is read late, nor a machine that slept can make a replica stall.
"""

from dataclasses import dataclass, field
from datetime import datetime

from trainyard_protocol.progress import HEARTBEAT, LAST, START, Mark
from trainyard_protocol.sync import Stall, StallPolicy

ADVANCES = 3
"""So often must a step have changed before its history says anything."""

_BLOCK = 500  # the history is one to two blocks of signs long: what happened once, long ago, does not count for ever
_LOOKS = 4  # without a sign, at least: what one pause of the agent itself adds is bounded


@dataclass(slots=True)
class Watched:
    """One replica, as its lines tell. `stacks`: the signal on which it said that it writes them."""

    step: int | None = None
    since: datetime | None = None
    stacks: str = ""
    idle_s: float = 0.0
    advances: int = 0
    _over: bool = False
    _sign_at: datetime | None = None
    _longest_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _signs: int = 0

    @property
    def longest_s(self) -> float:
        """Between two signs, lately."""
        return max(self._longest_s)

    def take(self, mark: Mark, at: datetime) -> None:
        """A line of it was read, which is from `at`, by the clock of its machine."""
        if mark.event == START:
            self.stacks = mark.stacks
            return
        advances = mark.step is not None and mark.step != self.step
        if mark.event == HEARTBEAT and not advances:
            return
        if advances:
            self.advances += self.step is not None
            self.step, self.since = mark.step, at
        if self._sign_at is not None:
            self._remember((at - self._sign_at).total_seconds())
        self._sign_at = at
        self.idle_s = 0.0
        self._over = mark.event in LAST or (mark.steps is not None and mark.step == mark.steps)

    def wait(self, seconds: float, policy: StallPolicy) -> None:
        """All that it has written was read, and so much time has passed since that was so before."""
        self.idle_s += min(max(seconds, 0.0), self.limit_s(policy) / _LOOKS)

    def limit_s(self, policy: StallPolicy) -> float:
        if policy.limit_s is not None:
            return policy.limit_s
        return max(policy.least_s, policy.factor * self.longest_s)

    def is_stalled(self, policy: StallPolicy) -> bool:
        needed = ADVANCES if policy.limit_s is None else 1
        return self.advances >= needed and not self._over and self.idle_s > self.limit_s(policy)

    def stands_still(self, seconds: float) -> bool:
        """Whether there was no sign of it for so long, though there should be more."""
        return self.step is not None and not self._over and self.idle_s >= seconds

    def stall(self, policy: StallPolicy) -> Stall:
        """How it stands still. It must have reported a step."""
        assert self.step is not None
        assert self.since is not None
        return Stall(
            step=self.step,
            since=self.since,
            limit_s=self.limit_s(policy),
            for_s=round(self.idle_s, 3),
            longest_s=round(self.longest_s, 3),
        )

    def _remember(self, seconds: float) -> None:
        if self._signs % _BLOCK == 0:
            self._longest_s = [self._longest_s[1], 0.0]
        self._signs += 1
        self._longest_s[1] = max(self._longest_s[1], seconds)
