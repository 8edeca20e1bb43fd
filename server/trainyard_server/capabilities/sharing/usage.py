"""CPU time and GPU time of a run, idle GPU time, and their sums for a report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

IDLE_BELOW = 0.05
"""A GPU with a smaller part of its time in use is idle."""

_LONGEST_GAP_S = 120.0
"""The longest time between two measurements that counts as measured."""


@dataclass(frozen=True, slots=True)
class HeldShare:
    """The resources of one replica while it was there."""

    cpus: int
    gpus: int
    started_at: datetime | None
    finished_at: datetime | None

    def seconds(self, now: datetime) -> float:
        if self.started_at is None:
            return 0.0
        return max(0.0, ((self.finished_at or now) - self.started_at).total_seconds())


def cpu_seconds(shares: Iterable[HeldShare], now: datetime) -> float:
    return sum(share.cpus * share.seconds(now) for share in shares)


def gpu_seconds(shares: Iterable[HeldShare], now: datetime) -> float:
    return sum(share.gpus * share.seconds(now) for share in shares)


def idle_gpu_seconds(points: Sequence[tuple[float, Sequence[float | None]]]) -> float | None:
    """GPU-seconds between the measurements (time, utilization of each GPU from 0 to 1) in which a GPU was idle; None
    if none was measured."""
    idle, is_measured = 0.0, False
    for (before, _), (time, utilizations) in pairwise(points):
        for utilization in utilizations:
            if utilization is not None and 0 < time - before <= _LONGEST_GAP_S:
                is_measured = True
                idle += (time - before) * (utilization < IDLE_BELOW)
    return idle if is_measured else None


def mean_use(replicas: Iterable[Sequence[tuple[float, Sequence[float | None]]]]) -> tuple[float, float]:
    """The mean utilization of the GPUs of replicas, and for how many seconds of each GPU it was measured."""
    used, measured, gpus = 0.0, 0.0, 0
    for points in replicas:
        gpus += max((len(utilizations) for _, utilizations in points), default=0)
        for (before, _), (time, utilizations) in pairwise(points):
            for utilization in utilizations:
                if utilization is not None and 0 < time - before <= _LONGEST_GAP_S:
                    used += (time - before) * utilization
                    measured += time - before
    return (used / measured if measured else 0.0), (measured / gpus if gpus else 0.0)


@dataclass(slots=True)
class UsageTotal:
    """A row of a report. Hours are those of one CPU, or of one GPU; `idle_gpu_hours` are a part of the GPU-hours, of
    those that were measured. `waits` and `wait_s`: first runs, and how long they were waited for."""

    runs: int = 0
    failed_runs: int = 0
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    waits: int = 0
    wait_s: float = 0.0

    def add(
        self, cpu_s: float, gpu_s: float, idle_gpu_s: float | None, wait_s: float | None, *, has_failed: bool
    ) -> None:
        self.runs += 1
        self.failed_runs += has_failed
        self.cpu_hours += cpu_s / 3600
        self.gpu_hours += gpu_s / 3600
        self.idle_gpu_hours += (idle_gpu_s or 0.0) / 3600
        if wait_s is not None:
            self.waits += 1
            self.wait_s += wait_s

    @property
    def mean_wait_s(self) -> float | None:
        return self.wait_s / self.waits if self.waits else None
