"""CPU seconds of one plan of 1000 queued jobs on 20 agents of 64 CPUs: empty, nearly full and full, with equal gangs
and with gangs of random memory, for which backfill considers more combinations."""

import random
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.machines import GIGABYTE, ReplicaRequest, Resources
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import JobState
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.scheduling.scheduler import plan
from trainyard_server.domain.snapshots import JobSnapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOBS, AGENTS, CPUS, ROUNDS = 1000, 20, 64, 5


def main() -> None:
    print(f"{JOBS} jobs, {AGENTS} agents of {CPUS} CPUs, the median of {ROUNDS} plans")
    for full in (0.0, 0.8, 1.0):
        for alike in (True, False):
            chance = random.Random(1)  # noqa: S311 - the same case each time
            agents = [_agent(chance, number, full, alike) for number in range(AGENTS)]
            queue = [_job(chance, number, alike) for number in range(JOBS)]
            seconds, placed = (
                statistics.median(_seconds(queue, agents)),
                len(plan(queue, agents, NOW).placements),
            )
            sizes = "equal" if alike else "random memory"
            print(f"{full:4.0%} in use, gangs {sizes:<13}  {seconds:.3f} s  {placed} placed")


def _seconds(queue: list[JobSnapshot], agents: list[AgentSnapshot]) -> Iterator[float]:
    for _ in range(ROUNDS):
        began = time.process_time()
        plan(queue, agents, NOW)
        yield time.process_time() - began


def _agent(chance: random.Random, number: int, full: float, alike: bool) -> AgentSnapshot:
    capacity = Capacity(cpus=tuple(range(CPUS)), memory_bytes=4 * CPUS * GIGABYTE)
    gangs: list[Gang] = []
    first = 0
    while first < CPUS:
        cpus = min(chance.choice((1, 2, 4, 8)), CPUS - first)
        if chance.random() < full:
            memory = _memory(chance, cpus, alike)
            gangs.append(
                Gang(JOBS + len(gangs), "p", frozenset(range(first, first + cpus)), memory_bytes=memory)
            )
        first += cpus
    return AgentSnapshot(f"a{number}", f"a{number}", capacity, "strict", False, True, tuple(gangs))


def _job(chance: random.Random, number: int, alike: bool) -> JobSnapshot:
    cpus, replicas = chance.choice((1, 2, 4, 8)), chance.choice((1, 1, 2, 4, 8, 16))
    resources = Resources(cpus, _memory(chance, cpus, alike))
    gang = [ReplicaRequest(Task("master", 0), "", resources)]
    gang += [ReplicaRequest(Task("worker", n), "", resources) for n in range(replicas - 1)]
    created_at = NOW - timedelta(seconds=JOBS - number)
    return JobSnapshot(
        number,
        "p",
        f"job{number}",
        JobState.QUEUED,
        TrainingInput(),
        tuple(gang),
        created_at=created_at,
        queued_at=created_at,
    )


def _memory(chance: random.Random, cpus: int, alike: bool) -> int:
    return cpus * (2 * GIGABYTE if alike else chance.randint(1, 4 * GIGABYTE))


if __name__ == "__main__":
    main()
