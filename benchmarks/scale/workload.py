"""The jobs of an installation in its hour of most jobs, drawn from a seed.

Arrivals are a Poisson process, gangs and durations are log-normal. All machines are alike.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.scale.bed import CPUS
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.machines import ReplicaRequest, Resources
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import JobState
from trainyard_server.domain.snapshots import JobSnapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOBS_PER_AGENT = 100
"""Jobs a day for each agent."""

_PEAK = 1.6
"""The rate in the hour of most jobs, as a multiple of the mean."""

_DAY_S = 86_400.0
_PROJECTS = 50
_LONGEST_S = _DAY_S
_SIGMA = 1.5


@dataclass(frozen=True, slots=True)
class DrawnJob:
    at: float
    project: str
    priority: int
    gang: tuple[ReplicaRequest, ...]
    duration_s: float
    stage_s: float

    @property
    def cpus(self) -> int:
        return sum(replica.resources.vcpus for replica in self.gang)

    def queued(self, key: int, since: datetime) -> JobSnapshot:
        """The job in the server's queue."""
        name, state, priority = f"job_{key}", JobState.QUEUED, self.priority
        return JobSnapshot(
            key, self.project, name, state, _INPUT, self.gang, created_at=since, queued_at=since, priority=priority
        )


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs for so many agents. `median_s`: of their durations."""

    agents: int
    jobs_per_agent: int = JOBS_PER_AGENT
    seed: int = 1
    median_s: float = 480.0

    def arrivals(self) -> Iterator[DrawnJob]:
        """Submissions, in their order and without end."""
        chance, at = random.Random(f"{self.seed} jobs"), 0.0  # noqa: S311
        rate = self.agents * self.jobs_per_agent * _PEAK / _DAY_S
        while True:
            at += chance.expovariate(rate)
            yield _job(chance, at, chance.lognormvariate(math.log(self.median_s), _SIGMA))

    def running(self) -> Iterator[DrawnJob]:
        """Jobs that run at the beginning, with what is left of their durations: long ones are met more often."""
        chance = random.Random(f"{self.seed} running")  # noqa: S311
        while True:
            whole = chance.lognormvariate(math.log(self.median_s) + _SIGMA**2, _SIGMA)
            yield _job(chance, 0.0, whole * chance.random())


def _job(chance: random.Random, at: float, duration_s: float) -> DrawnJob:
    cpus = chance.choices((4, 8, 16), (60, 30, 10))[0]
    replicas = max(1, min(round(chance.lognormvariate(math.log(1.3), 0.7)), CPUS // cpus))
    project = f"p{min(int(chance.expovariate(8 / _PROJECTS)), _PROJECTS - 1)}"
    priority = chance.choices((0, 1, 2), (80, 15, 5))[0]
    stage_s = chance.lognormvariate(0.7, 0.6)
    return DrawnJob(at, project, priority, _GANGS[cpus, replicas], min(duration_s, _LONGEST_S), stage_s)


def _gang(cpus: int, replicas: int) -> tuple[ReplicaRequest, ...]:
    resources = Resources(cpus, cpus * 3 * GIGABYTE)
    tasks = [Task("master", 0), *(Task("worker", number) for number in range(replicas - 1))]
    return tuple(ReplicaRequest(task, f"n1-standard-{cpus}", resources) for task in tasks)


_INPUT = TrainingInput()
_GANGS = {(cpus, replicas): _gang(cpus, replicas) for cpus in (4, 8, 16) for replicas in range(1, CPUS // cpus + 1)}
