"""Backfill, tested by brute force: every set of gangs, and every order of endings."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from operator import le
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainyard_server.domain.scheduling import backfill
from trainyard_server.domain.scheduling.backfill import Amounts, Reservations
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import in_order, plan
from trainyard_server.domain.scheduling.sharing import FIRST_COME
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, gang_of, held, placed, queued

CPUS_4 = tuple(range(4))


def test_small_job_that_could_delay_the_large_one_waits() -> None:
    jobs = [queued(1, cpus=7, age=9), queued(2, cpus=2)]
    result = plan(jobs, [agent(cpus=8, gangs=(held(*CPUS_4),))], NOW)
    assert placed(result) == []
    assert result.waiting[2].kind == "room"
    assert result.waiting[2].reason == (
        "needs 2 vCPU and 2.0 GB; agent laptop has room for it, reserved for jobs ahead; 1 job ahead"
    )


amounts = st.tuples(st.integers(0, 5), st.integers(0, 5))


@given(
    capacity=st.tuples(st.integers(3, 10), st.integers(3, 10)),
    running=st.lists(amounts, max_size=4),
    ahead=st.lists(amounts, min_size=1, max_size=3),
    others=st.lists(amounts, max_size=2),
    requested=amounts,
)
def test_harmless_is_what_every_set_of_gangs_says(
    capacity: Amounts, running: list[Amounts], ahead: list[Amounts], others: list[Amounts], requested: Amounts
) -> None:
    assume(all(map(le, requested, capacity)))
    reservations = Reservations(capacity, running)
    for one in others:
        reservations.expect(one)
    for one in ahead:
        reservations.reserve(one)

    def fit(*gangs: Amounts) -> bool:
        return all(sum(one) <= there for one, there in zip(zip(*gangs, strict=True), capacity, strict=True))

    def delayed(number: int) -> bool:
        beside = [*running, *others, *ahead[:number], *ahead[number + 1 :]]
        return any(
            fit(ahead[number], *chosen) and not fit(ahead[number], requested, *chosen)
            for count in range(len(beside) + 1)
            for chosen in itertools.combinations(beside, count)
        )

    assert reservations.can_backfill(requested) is not any(map(delayed, range(len(ahead))))


class Yard:
    """Machines and a queue. What runs ends when the test says so, and then what can start does."""

    def __init__(self, agents: Iterable[AgentSnapshot], jobs: Iterable[JobSnapshot]) -> None:
        self._agents = {one.agent_id: one for one in agents}
        self._jobs = {job.key: job for job in jobs}
        self.started: dict[int, int] = {}
        self._event = 0
        self._schedule()

    @property
    def agents(self) -> list[AgentSnapshot]:
        return list(self._agents.values())

    def running(self) -> list[int]:
        return [gang.key for one in self._agents.values() for gang in one.gangs]

    def end(self, key: int) -> None:
        self._event += 1
        for name, one in self._agents.items():
            self._agents[name] = replace(one, gangs=tuple(gang for gang in one.gangs if gang.key != key))
        self._schedule()

    def _schedule(self) -> None:
        for placement in plan(self._jobs.values(), self._agents.values(), NOW).placements:
            home = self._agents[placement.agent_id]
            self._agents[placement.agent_id] = replace(home, gangs=(*home.gangs, gang_of(placement)))
            del self._jobs[placement.key]
            self.started[placement.key] = self._event


def machines(random: Random) -> list[AgentSnapshot]:
    return [
        agent(
            f"a{n}",
            random.randint(2, 8),
            random.randint(4, 16),
            tuple(random.choices("AB", k=random.choice((0, 0, 1, 3)))),
            random.choice(("strict", "fit")),
        )
        for n in range(random.randint(1, 3))
    ]


def wishes(random: Random, first: int) -> list[JobSnapshot]:
    """Most are small; some are as large as a machine, or larger."""
    return [
        queued(
            first + n,
            random.choice((1, 1, 2)),
            cpus=random.choice((1, 1, 2, 3, 5, 6)),
            gb=random.choice((1, 2, 3, 7)),
            gpus=random.choice((0, 0, 0, 1, 2)),
            kind=random.choice("ABC"),
            priority=random.choice((0, 0, 1)),
        )
        for n in range(random.randint(1, 9))
    ]


@pytest.mark.parametrize("max_sums", [2, backfill.MAX_SUMS])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**64))
def test_nobody_starts_later_for_what_stands_behind(max_sums: int, seed: int) -> None:
    """Whatever runs and whatever ends when: the first jobs of the queue start when they would alone."""
    random = Random(seed)
    before = Yard(machines(random), wishes(random, 100))
    jobs = in_order(wishes(random, 1), FIRST_COME, NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfill, "MAX_SUMS", max_sums)
        for _ in range(4):
            count = random.randint(0, len(jobs))
            alone, behind = Yard(before.agents, jobs[:count]), Yard(before.agents, jobs)
            ahead = {job.key for job in jobs[:count]}
            while running := behind.running():
                assert alone.started == {key: when for key, when in behind.started.items() if key in ahead}
                ends = random.choice(running)
                behind.end(ends)
                alone.end(ends)
