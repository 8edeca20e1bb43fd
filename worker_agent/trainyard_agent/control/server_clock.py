"""The server's clock, as far as an agent knows it from its syncs: how an exit here relates to one on another machine.

Each answer has two times of the server: that of the request's arrival and that of its own departure. As in NTP (RFC
5905), the way there and back took what is left of the time between the agent's two, and each way at least nothing: so
the difference of the clocks is known to half of that.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard_protocol.wire.sync import ClockOffset

_DRIFT = 200e-6
"""Clocks of machines part by at most this share of the time, whether or not they are disciplined."""


@dataclass(frozen=True, slots=True)
class _Sample:
    offset_s: float
    error_s: float
    at: datetime

    def error_at(self, now: datetime) -> float:
        return self.error_s + _DRIFT * abs((now - self.at).total_seconds())


class ServerClock:
    """Keeps the sample that is best by now. A clock that was set makes a sample that contradicts it, which is kept."""

    def __init__(self) -> None:
        self._best: _Sample | None = None

    def add(self, sent: datetime, received: datetime, answered: datetime, now: datetime) -> None:
        """Take the times of a sync: sent and answered here (`sent`, `now`), received and answered by the server."""
        on_the_way = (now - sent) - (answered - received)
        if on_the_way < timedelta(0):  # a clock was set meanwhile
            return
        offset = ((received - sent) + (answered - now)) / 2
        fresh = _Sample(offset.total_seconds(), on_the_way.total_seconds() / 2, now)
        best = self._best
        if best is not None:
            is_contradicted = abs(best.offset_s - fresh.offset_s) > best.error_at(now) + fresh.error_s
            if not is_contradicted and best.error_at(now) <= fresh.error_s:
                return
        self._best = fresh

    def offset(self, now: datetime) -> ClockOffset | None:
        """The difference to a time of this machine, and by how much that may be wrong; None before an answer."""
        best = self._best
        return ClockOffset(offset_s=best.offset_s, error_s=best.error_at(now)) if best is not None else None
