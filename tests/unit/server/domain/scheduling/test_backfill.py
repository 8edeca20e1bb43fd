"""Backfill, tested by brute force: every set of gangs, and every order of endings."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
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


def test_small_job_starts_in_room_that_the_large_one_does_not_need() -> None:
    """The large one needs 6 of 8 CPUs, and 4 run: 2 stay free whatever ends."""
    result = plan([queued(1, cpus=6, age=9), queued(2, cpus=2)], [agent(cpus=8, gangs=(held(*CPUS_4),))], NOW)
    assert placed(result) == [2]
    assert result.waiting[1].position == 1


def test_small_job_that_could_delay_the_large_one_waits() -> None:
    jobs = [queued(1, cpus=7, age=9), queued(2, cpus=2)]
    result = plan(jobs, [agent(cpus=8, gangs=(held(*CPUS_4),))], NOW)
    assert placed(result) == []
    assert result.waiting[2].kind == "room"
    assert result.waiting[2].reason == (
        "needs 2 vCPU and 2.0 GB; agent laptop has room for it, reserved for jobs ahead; 1 job ahead"
    )


def test_cpu_job_passes_a_job_that_waits_for_devices() -> None:
    """The large one cannot start before the gang with the devices ends, and then there are CPUs for both."""
    host = agent(cpus=8, gb=64, gpus=("A", "A"), gangs=(held(*CPUS_4, gpus=("laptop-0", "laptop-1")),))
    large = queued(1, cpus=6, gpus=2, kind="A", age=9)
    assert placed(plan([large, queued(2, cpus=2)], [host], NOW)) == [2]
    assert placed(plan([large, queued(2, cpus=3)], [host], NOW)) == []


def test_agent_that_is_no_home_of_the_large_one_is_free_for_all() -> None:
    agents = [agent("big", 8, gangs=(held(*CPUS_4),)), agent("small", 2)]
    result = plan([queued(1, cpus=8, age=9), queued(2)], agents, NOW)
    assert [(p.key, p.agent_id) for p in result.placements] == [(2, "small")]


def test_small_job_goes_where_it_harms_nobody() -> None:
    """On `a`, which comes first, the large one needs everything."""
    agents = [agent("a", 6, gangs=(held(0, 1),)), agent("b", 8, gangs=(held(*CPUS_4, key=98),))]
    result = plan([queued(1, cpus=6, age=9), queued(2, cpus=2)], agents, NOW)
    assert [(p.key, p.agent_id) for p in result.placements] == [(2, "b")]


def test_another_one_ahead_may_come_to_stand_beside_the_large_one() -> None:
    host = agent(cpus=10, gb=64, gangs=(held(*CPUS_4, gb=10),))
    large, other, small = queued(1, cpus=7, age=9), queued(2, cpus=3, gb=60, age=8), queued(3, cpus=2)
    assert placed(plan([large, small], [host], NOW)) == [3]
    assert placed(plan([large, other, small], [host], NOW)) == []
    resting = replace(other, backoff_until=NOW + timedelta(seconds=1))
    assert placed(plan([large, resting, small], [host], NOW)) == []


def test_job_that_wants_the_whole_machine_for_itself_is_passed_by_nobody() -> None:
    host = agent(cpus=2, gb=20, mode="fit", gangs=(held(0),))
    result = plan([queued(1, 5, age=9), queued(2)], [host], NOW)
    assert placed(result) == []


def test_where_too_many_sums_would_be_to_look_at_nobody_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three small gangs have 8 different sums, and 16 with the job that would pass."""
    gangs = [held(n, key=90 + n, gb=gb) for n, gb in enumerate((30, 1, 1.1, 1.3))]
    jobs = [queued(1, cpus=4, gb=40, age=9), queued(2, gb=2)]
    for most, expected in ((16, [2]), (15, []), (7, [])):
        monkeypatch.setattr(backfill, "MAX_SUMS", most)
        assert placed(plan(jobs, [agent(cpus=8, gb=64, gangs=tuple(gangs))], NOW)) == expected


def test_job_that_takes_devices_does_not_pass_one_that_may_get_any() -> None:
    host = agent(cpus=8, gb=64, gpus=("A", "B", "B"), mode="fit", gangs=(held(0, gpus=("laptop-0",)),))
    scaled_down = queued(1, cpus=1, gpus=4, kind="C", age=9)
    assert placed(plan([scaled_down, queued(2, gpus=1, kind="B")], [host], NOW)) == []
    assert placed(plan([scaled_down, queued(2)], [host], NOW)) == [2]
    elsewhere = agent("strict", 2, gpus=("B", "B", "B", "B"))  # no home of the one ahead
    assert placed(plan([scaled_down, queued(2, gpus=1, kind="B")], [host, elsewhere], NOW)) == [2]


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


@pytest.mark.parametrize("max_sums", [2, 6, backfill.MAX_SUMS])
@settings(max_examples=40)
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
