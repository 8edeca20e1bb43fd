"""A day of jobs and failures, drawn from a seed.

Arrivals are a Poisson process whose rate follows the day, with its peak at 14:00. Gangs and durations are log-normal.
All machines are alike.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from benchmarks.scale.bed import CPUS
from benchmarks.scale.measures import gang_of_shape
from trainyard_protocol.job.machines import ReplicaRequest

DAY_S = 86_400.0
_PEAK_S = 14 * 3600.0


@dataclass(frozen=True, slots=True)
class DrawnJob:
    at: float
    project: str
    priority: int
    gang: tuple[ReplicaRequest, ...]
    cpus: int
    duration_s: float
    stage_s: float


@dataclass(frozen=True)
class Load:
    """Arrivals and failures. `swing`: the rate at its peak is so much above the mean. `mtbf_s`: of each agent."""

    agents: int
    jobs_per_day: float
    seed: int = 1
    swing: float = 0.6
    median_s: float = 480.0
    sigma: float = 1.5
    median_replicas: float = 1.3
    replicas_sigma: float = 0.7
    projects: int = 50
    mtbf_s: float = 30 * DAY_S
    median_down_s: float = 300.0

    @property
    def mean_duration_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2)

    @cached_property
    def mean_cpus(self) -> float:
        """CPUs of a gang, of a sample."""
        chance = random.Random(f"{self.seed} mean")  # noqa: S311
        return (
            sum(cpus * replicas for cpus, replicas in (self._shape(chance) for _ in range(20_000))) / 20_000
        )

    def rate(self, at: float) -> float:
        """Arrivals per second at a time of the day."""
        mean = self.jobs_per_day / DAY_S
        return mean * (1 + self.swing * math.cos((at - _PEAK_S) / DAY_S * 2 * math.pi))

    def offered(self, at: float) -> float:
        """CPUs asked for at a time of the day, as a part of those that there are."""
        return self.rate(at) * self.mean_duration_s * self.mean_cpus / (self.agents * CPUS)

    def jobs(self, start: float, end: float) -> Iterator[DrawnJob]:
        chance = random.Random(f"{self.seed} jobs")  # noqa: S311
        highest, at = self.jobs_per_day / DAY_S * (1 + self.swing), start
        while (at := at + chance.expovariate(highest)) < end:
            if chance.random() < self.rate(at) / highest:
                yield self._job(chance, at, chance.lognormvariate(math.log(self.median_s), self.sigma))

    def running(self, at: float) -> Iterator[DrawnJob]:
        """Jobs that run at a time, without end, with what is left of their durations: long ones are met more often."""
        chance = random.Random(f"{self.seed} running")  # noqa: S311
        while True:
            whole = chance.lognormvariate(math.log(self.median_s) + self.sigma**2, self.sigma)
            yield self._job(chance, at, whole * chance.random())

    def failures(self, start: float, end: float) -> Iterator[tuple[float, int, float]]:
        """Times at which an agent falls silent, its number, and for how long."""
        chance, at = random.Random(f"{self.seed} failures"), start  # noqa: S311
        while (at := at + chance.expovariate(self.agents / self.mtbf_s)) < end:
            yield at, chance.randrange(self.agents), chance.lognormvariate(math.log(self.median_down_s), 1.0)

    def _job(self, chance: random.Random, at: float, duration_s: float) -> DrawnJob:
        cpus, replicas = self._shape(chance)
        project = f"p{min(int(chance.expovariate(8 / self.projects)), self.projects - 1)}"
        priority = chance.choices((0, 1, 2), (80, 15, 5))[0]
        gang = _GANGS[cpus, replicas]
        return DrawnJob(
            at,
            project,
            priority,
            gang,
            cpus * replicas,
            min(duration_s, DAY_S),
            chance.lognormvariate(0.7, 0.6),
        )

    def _shape(self, chance: random.Random) -> tuple[int, int]:
        cpus = chance.choices((4, 8, 16), (60, 30, 10))[0]
        drawn = chance.lognormvariate(math.log(self.median_replicas), self.replicas_sigma)
        return cpus, max(1, min(round(drawn), CPUS // cpus))


_GANGS = {
    (cpus, replicas): gang_of_shape(cpus, replicas)
    for cpus in (4, 8, 16)
    for replicas in range(1, CPUS // cpus + 1)
}
