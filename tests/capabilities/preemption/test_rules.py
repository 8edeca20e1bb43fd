"""Preemption, planned: which runs are stopped so that a job of a higher band starts."""

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard_protocol.job.keys.scheduling import Band
from trainyard_server.capabilities.preemption.rules import PreemptibleRun, is_due, preemption
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.scheduler import plan
from trainyard_server.domain.scheduling.sharing import ProjectRules, Sharing
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, gang_of, held, of_band

HOUR = timedelta(hours=1)
PREEMPTS = Sharing(default=ProjectRules(preemptible=True))


def victims(
    job: JobSnapshot, agents: list[Any], risks: dict[int, float], sharing: Sharing = PREEMPTS, *more: JobSnapshot
) -> list[int]:
    runs = {key: PreemptibleRun(key, risk) for key, risk in risks.items()}
    chosen = preemption([job, *more], agents, runs, (), NOW, Quotas(sharing=sharing))
    return [] if chosen is None else [run.key for run in chosen.victims]


FULL = [
    agent("a", cpus=4, gangs=(held(0, 1, key=11), held(2, 3, key=12))),
    agent("b", cpus=4, gangs=(held(0, 1, key=21), held(2, 3, key=22))),
]


def test_victims_have_the_least_work_at_risk() -> None:
    risks = {11: 50.0, 12: 900.0, 21: 70.0, 22: 20.0}
    assert victims(of_band("normal", 1, cpus=2), FULL, risks) == [22]
    assert victims(of_band("normal", 1, cpus=4), FULL, risks) == [22, 21], "together less than those of a"
    assert victims(of_band("batch", 1, cpus=2), FULL, risks) == [], "batch jobs wait"
    assert victims(of_band("normal", 1, cpus=5), FULL, risks) == [], "no agent could hold it"
    assert victims(of_band("normal", 1, cpus=2), FULL, {}) == []


def test_nobody_is_stopped_for_a_job_that_would_not_start() -> None:
    risks = {22: 1.0}
    first = of_band("production", 1, cpus=4, age=60)  # waits for a whole machine, which nobody gives up
    assert victims(of_band("normal", 2, cpus=2), FULL, risks, PREEMPTS, first) == []
    roomy = [agent("a", cpus=4, gangs=(held(0, 1, key=11),))]
    assert victims(of_band("normal", 1, cpus=2), roomy, {11: 1.0}) == [], "it starts without that"


def test_checkpoint_is_waited_for_where_it_is_due_soon() -> None:
    minutes = [timedelta(minutes=number) for number in range(31)]

    def is_waited_for(since: int, wait: int) -> bool:
        """The decision about a program that saves every 10 minutes, so many minutes after its last checkpoint."""
        return is_due(NOW - minutes[since], minutes[10], NOW, minutes[wait])

    assert [since for since in range(21) if is_waited_for(since, 5)] == list(range(6, 16)), "later it may save no more"
    assert is_waited_for(0, 11)
    assert not is_waited_for(0, 10), "it may be a bit late"


def site_of(*gangs: Any) -> list[Any]:
    """Machines of four CPUs that reach each other, each with these gangs."""
    return [agent(f"m{number}", cpus=4, address="10.0.0.1", gangs=tuple(own)) for number, own in enumerate(gangs)]


def test_gang_over_several_agents_gets_room_on_all_of_them() -> None:
    site = site_of((held(0, 1, key=11), held(2, 3, key=12)), (held(0, 1, 2, 3, key=21),), (held(0, 1, 2, 3, key=31),))
    gang = of_band("normal", 1, replicas=2, cpus=4)
    assert victims(gang, site, {11: 1.0, 12: 1.0, 21: 9.0, 31: 5.0}) == [11, 12, 31]
    assert victims(gang, site, {11: 1.0, 21: 9.0, 31: 20.0}) == [21, 31], "half of a machine is of no use"
    assert victims(gang, site, {11: 1.0, 12: 1.0}) == [], "one machine is not enough"
    parts = site_of((held(0, 1, 2, 3, key=7),), (held(0, 1, 2, 3, key=7),))
    assert victims(gang, parts, {7: 9.0}) == [7], "of a gang over both the whole run"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_stopped_starts_the_job_and_nothing_less_would(data: st.DataObject) -> None:
    """Random sites, runs and queues: a set of runs is given up only if the job then starts behind those ahead of it,
    each of them is needed, and all of them are preemptible."""
    machines = data.draw(st.lists(st.lists(st.integers(1, 6), min_size=4, max_size=4), min_size=1, max_size=4))
    site = site_of(
        *(
            [held(*(cpu for cpu in range(4) if keys[cpu] == key), key=key) for key in sorted(set(keys)) if key != 6]
            for keys in machines
        )
    )
    risks = data.draw(st.dictionaries(st.integers(1, 5), st.floats(0, 100), max_size=5))
    jobs = st.tuples(st.sampled_from(("production", "normal", "batch")), st.integers(1, 3), st.integers(1, 4))
    queue = [
        of_band(band, key, replicas=replicas, cpus=cpus)
        for key, (band, replicas, cpus) in enumerate(data.draw(st.lists(jobs, min_size=1, max_size=3)), start=101)
    ]
    runs = {key: PreemptibleRun(key, risk) for key, risk in risks.items()}
    limits = Quotas(sharing=PREEMPTS)
    chosen = preemption(queue, site, runs, (), NOW, limits)
    if chosen is None:
        return
    job, gone = chosen.job, {run.key for run in chosen.victims}
    assert gone <= risks.keys()
    assert job.band is not Band.BATCH

    def starts(without: set[int]) -> bool:
        left = [replace(a, gangs=tuple(gang for gang in a.gangs if gang.key not in without)) for a in site]
        return job.key in [placement.key for placement in plan(queue, left, NOW, limits).placements]

    assert starts(gone)
    assert not any(starts(gone - {key}) for key in gone)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_histories_starve_nobody_and_stop_no_run_early(seed: int) -> None:
    """Random arrivals on a full site, for three weeks in steps of ten minutes. Every job starts within the bound: a
    week, and the runs ahead of it; and no run is stopped within its first hour."""
    chance = random.Random(seed)
    sharing = replace(PREEMPTS, overdue_after=timedelta(days=7), min_run=HOUR)
    waiting: dict[int, JobSnapshot] = {}
    running: dict[int, tuple[Any, datetime, datetime, JobSnapshot]] = {}
    now, step, waits = NOW, timedelta(minutes=10), list[timedelta]()
    preempted = 0
    for tick in range(3 * 7 * 24 * 6):
        for key in [key for key, (_, _, end, _) in running.items() if end <= now]:
            del running[key]
        if len(waiting) < 12 and chance.random() < 0.5:  # more than the site can do
            band = chance.choice(("production", "normal", "normal", "batch"))
            job = of_band(band, tick + 1, cpus=chance.choice((1, 2, 4)), owner=chance.choice("ab"))
            waiting[job.key] = replace(job, created_at=now, queued_at=now)
        runs = {
            key: PreemptibleRun(key, (now - began).total_seconds())
            for key, (_, began, _, job) in running.items()
            if job.band is Band.BATCH and now - began >= sharing.min_run
        }
        site = [agent("a", cpus=4, gangs=tuple(gang for gang, *_ in running.values()))]
        limits = Quotas(sharing=sharing)
        chosen = preemption(waiting.values(), site, runs, (), now, limits)
        for victim in chosen.victims if chosen is not None else ():
            _, began, _, job = running.pop(victim.key)
            assert now - began >= HOUR
            waiting[job.key] = replace(job, queued_at=now)
            preempted += 1
        site = [agent("a", cpus=4, gangs=tuple(gang for gang, *_ in running.values()))]
        placed = plan(waiting.values(), site, now, limits).placements
        if chosen is not None:
            assert chosen.job.key in [placement.key for placement in placed], "it was stopped for nothing"
        for placement in placed:
            job = waiting.pop(placement.key)
            waits.append(now - job.queued_at)
            running[job.key] = (gang_of(placement), now, now + chance.choice((1, 5, 24)) * HOUR, job)
        now += step
    bound = sharing.overdue_after + 12 * timedelta(days=1)  # a week, and at most twelve runs of a day ahead of it
    assert max([*waits, *(now - job.queued_at for job in waiting.values())]) <= bound
    assert preempted
