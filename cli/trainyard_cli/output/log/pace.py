"""Speed of a training in steps, and the time that is left. Pure.

The speed is that of the last reports. The time up to the first of them does not count: it is mostly compilation.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

_REPORTS = 200
_WINDOW_S = 15.0  # of the speed,
_LEAST_REPORTS = 8  # or so many reports
_SILENT_AT_LEAST_S = 20.0
_SILENT_FACTOR = 3.0  # times the longest recent interval between two reports
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(slots=True)
class Pace:
    """The last reports of a step. A step that decreases begins anew: another run, or another epoch."""

    _reports: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=_REPORTS))
    _has_first: bool = False

    @property
    def step(self) -> int | None:
        return self._reports[-1][1] if self._reports else None

    def add(self, step: int, at: datetime) -> None:
        """Record a report. One that repeats the last step changes nothing."""
        if self._reports:
            last_at, last = self._reports[-1]
            if step == last:
                return
            if step < last:
                self._reports.clear()
                self._has_first = False
            elif at <= last_at:  # of the same instant, or by a clock that was set
                at = last_at
                self._reports.pop()
        self._reports.append((at, step))
        if len(self._reports) == 1:
            self._has_first = True
        elif len(self._reports) == 3 and self._has_first:
            self._reports.popleft()
            self._has_first = False

    @property
    def steps_per_s(self) -> float | None:
        if len(self._reports) < 2:
            return None
        last_at, last = self._reports[-1]
        recent = [report for report in self._reports if (last_at - report[0]).total_seconds() <= _WINDOW_S]
        first_at, first = self._reports[max(0, len(self._reports) - max(len(recent), _LEAST_REPORTS))]
        return (last - first) / (last_at - first_at).total_seconds()

    def left_s(self, steps: int | None) -> float | None:
        """Time for the remaining steps, as of the last report: it does not count down while no steps come."""
        rate = self.steps_per_s
        if rate is None or steps is None or self.step is None or self.step >= steps:
            return None
        return (steps - self.step) / rate

    def silent_s(self, now: datetime) -> float | None:
        """Time since the last report, if that is longer than is usual; else None."""
        if not self._reports:
            return None
        times = [at for at, _ in self._reports]
        longest = max(((b - a).total_seconds() for a, b in pairwise(times)), default=0.0)
        since = (now - times[-1]).total_seconds()
        return since if since > max(_SILENT_AT_LEAST_S, _SILENT_FACTOR * longest) else None


def left_text(seconds: float) -> str:
    """`0:06 left`, `1:02:03 left`, `3 d 4 h left`."""
    whole = int(min(seconds, 1000 * _DAY))
    if whole >= _DAY:
        return f"{whole // _DAY} d {whole % _DAY // _HOUR} h left"
    hours, rest = divmod(whole, _HOUR)
    minutes = f"{hours}:{rest // _MINUTE:02}" if hours else f"{rest // _MINUTE}"
    return f"{minutes}:{rest % _MINUTE:02} left"


def silent_text(seconds: float) -> str:
    """`no step for 40 s`, `no step for 12 min`, `no step for 3 h`."""
    whole = int(seconds)
    if whole < 2 * _MINUTE:
        return f"no step for {whole} s"
    return f"no step for {whole // _MINUTE} min" if whole < 2 * _HOUR else f"no step for {whole // _HOUR} h"


def rate_text(steps_per_s: float) -> str:
    """`8.3 steps/s`; below one step in two seconds `12 s/step`."""
    value, unit = (steps_per_s, "steps/s") if steps_per_s >= 0.5 else (1 / steps_per_s, "s/step")
    return f"{value:.1f} {unit}" if value < 1000 else f"{value:.3g} {unit}"
