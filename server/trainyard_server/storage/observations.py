"""Observations of this process since its start: durations and counts, which `/metrics` shows. Thread-safe."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import NamedTuple

MINUTES = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0)
"""Bounds of durations of jobs, in seconds."""

MILLISECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds of durations of requests and rounds, in seconds."""

_GPU_FOR_S = 180.0
"""The time for which a measurement of a GPU is shown."""

_MOST_GPUS = 4096


class HistogramState(NamedTuple):
    """Numbers of values up to each bound and below the one before it, the last one beyond all; and their sum."""

    counts: Sequence[int]
    total: float


class DurationHistogram:
    """Durations in seconds, counted by bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._lock = Lock()
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, seconds: float) -> None:
        at = bisect_left(self.bounds, seconds)
        with self._lock:
            self._counts[at] += 1
            self._total += max(0.0, seconds)

    @property
    def state(self) -> HistogramState:
        with self._lock:
            return HistogramState(tuple(self._counts), self._total)


class MeasuredGpu(NamedTuple):
    """The newest measurement of a GPU that a job holds, 0 to 1."""

    agent: str
    gpu: str
    job: str
    utilization: float


class Observations:
    """`requests`: by class of route. `round_at`: the time of a monotonic clock after the last round of the scheduler,
    before the first one the start of this process: a first round that hangs has an age, too."""

    def __init__(self) -> None:
        self.queue_waits = DurationHistogram(MINUTES)
        self.starts = DurationHistogram(MINUTES)
        self.rounds = DurationHistogram(MILLISECONDS)
        self.round_at = time.monotonic()
        self._lock = Lock()
        self._requests: dict[str, DurationHistogram] = {}
        self._ends: Counter[str] = Counter()
        self._log_lines = 0
        self._gpus: dict[tuple[str, str], tuple[float, str, float]] = {}

    def round_ended(self, took_s: float) -> None:
        self.rounds.observe(took_s)
        self.round_at = time.monotonic()

    def request_ended(self, route_class: str, took_s: float) -> None:
        with self._lock:
            histogram = self._requests.setdefault(route_class, DurationHistogram(MILLISECONDS))
        histogram.observe(took_s)

    def run_ended(self, reason: str) -> None:
        with self._lock:
            self._ends[reason] += 1

    def lines_stored(self, count: int) -> None:
        with self._lock:
            self._log_lines += count

    def gpu_measured(self, agent: str, gpu: str, job: str, utilization: float) -> None:
        now = time.monotonic()
        with self._lock:
            self._gpus[agent, gpu] = (now, job, utilization)
            if len(self._gpus) > _MOST_GPUS:
                del self._gpus[next(iter(self._gpus))]

    @property
    def requests(self) -> Mapping[str, DurationHistogram]:
        with self._lock:
            return dict(self._requests)

    @property
    def run_ends(self) -> Mapping[str, int]:
        """Runs that have ended, by reason."""
        with self._lock:
            return dict(self._ends)

    @property
    def log_lines(self) -> int:
        with self._lock:
            return self._log_lines

    @property
    def gpus(self) -> Sequence[MeasuredGpu]:
        """The GPUs that were measured in the last minutes."""
        oldest = time.monotonic() - _GPU_FOR_S
        with self._lock:
            self._gpus = {key: value for key, value in self._gpus.items() if value[0] >= oldest}
            return [MeasuredGpu(agent, gpu, job, used) for (agent, gpu), (_, job, used) in self._gpus.items()]
