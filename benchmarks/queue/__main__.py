"""Seconds of CPU time for one plan of 1000 queued jobs on 20 agents of 64 CPUs: empty, nearly full and full; with gangs
that are alike, and with memory of any size, so that the sums that backfill looks at are many."""

import random
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from trainyard_protocol.cluster import Task
from trainyard_protocol.machines import GIGABYTE, ReplicaRequest, Resources
from trainyard_protocol.sync import Capacity
from trainyard_server.domain.scheduling.resources import Agent, Gang
from trainyard_server.domain.scheduling.scheduler import Queued, plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOBS, AGENTS, CPUS, ROUNDS = 1000, 20, 64, 5


def main() -> None:
    print(f"{JOBS} jobs, {AGENTS} agents of {CPUS} CPUs, the median of {ROUNDS} plans")
    for full in (0.0, 0.8, 1.0):
        for alike in (True, False):
            chance = random.Random(1)  # noqa: S311 - the same case each time
            agents = [_agent(chance, number, full, alike) for number in range(AGENTS)]
            queue = [_job(chance, number, alike) for number in range(JOBS)]
            took, placed = (
                statistics.median(_seconds(queue, agents)),
                len(plan(queue, agents, NOW).placements),
            )
            sizes = "alike" if alike else "of any size"
            print(f"{full:4.0%} in use, gangs {sizes:<11}  {took:.3f} s  {placed} placed")


def _seconds(queue: list[Queued], agents: list[Agent]) -> Iterator[float]:
    for _ in range(ROUNDS):
        began = time.process_time()
        plan(queue, agents, NOW)
        yield time.process_time() - began


def _agent(chance: random.Random, number: int, full: float, alike: bool) -> Agent:
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
    return Agent(f"a{number}", f"a{number}", capacity, "strict", False, True, tuple(gangs))


def _job(chance: random.Random, number: int, alike: bool) -> Queued:
    cpus, replicas = chance.choice((1, 2, 4, 8)), chance.choice((1, 1, 2, 4, 8, 16))
    resources = Resources(cpus, _memory(chance, cpus, alike))
    gang = [ReplicaRequest(Task("master", 0), "", resources)]
    gang += [ReplicaRequest(Task("worker", n), "", resources) for n in range(replicas - 1)]
    return Queued(number, 0, NOW - timedelta(seconds=JOBS - number), tuple(gang), project="p")


def _memory(chance: random.Random, cpus: int, alike: bool) -> int:
    return cpus * (2 * GIGABYTE if alike else chance.randint(1, 4 * GIGABYTE))


if __name__ == "__main__":
    main()
