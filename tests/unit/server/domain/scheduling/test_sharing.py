"""Bands, fair share, waiting too long, and preemption: the order of the queue, and who gives way to whom."""

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from trainyard_protocol.job.keys.scheduling import Band, Scheduling
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_server.domain.scheduling.preemption import PreemptibleRun, preemption
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.scheduler import in_order, plan
from trainyard_server.domain.scheduling.sharing import (
    FIRST_COME,
    Account,
    FairShare,
    ProjectRules,
    Sharing,
    decayed,
    standings,
)
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, gang_of, held, queued

HOUR = timedelta(hours=1)
FAIR = Sharing(fair_share=FairShare())
PREEMPTS = Sharing(default=ProjectRules(preemptible=True))


def of_band(band: str, key: int, **given: Any) -> JobSnapshot:
    owner = given.pop("owner", "")
    job = queued(key, **given)
    training_input = TrainingInput(scheduling=Scheduling(band=Band(band.upper()), priority=job.priority))
    return replace(job, training_input=training_input, owner=owner)


def keys(sharing: Sharing, *jobs: JobSnapshot, now: datetime = NOW) -> list[int]:
    return [job.key for job in in_order(jobs, sharing, now)]


def test_bands_go_before_priorities_and_priorities_before_age() -> None:
    jobs = (
        of_band("batch", 1, priority=1000, age=900),
        of_band("normal", 2, age=600),
        of_band("normal", 3, priority=1),
        of_band("production", 4),
    )
    assert keys(FIRST_COME, *jobs) == [4, 3, 2, 1]


def test_who_has_waited_too_long_goes_first_whatever_its_band_is() -> None:
    old, older = (of_band("batch", key, age=days * 86400) for key, days in ((1, 8), (2, 9)))
    production = of_band("production", 3, priority=1000, age=6 * 86400)
    assert keys(FIRST_COME, production, old, older) == [2, 1, 3]
    assert "goes ahead of all jobs that have not" in FIRST_COME.explanation(old, NOW)


def test_project_beyond_its_budget_is_in_the_band_batch() -> None:
    sharing = Sharing(over_budget=frozenset({"p"}))
    over, other = of_band("production", 1, age=60), of_band("normal", 2, project="q")
    assert keys(sharing, over, other) == [2, 1]
    assert "has used up this month's budget" in sharing.explanation(over, NOW)


def test_fair_share_delays_whoever_used_more_than_its_share() -> None:
    ana, bo, cy = (Account("p", name) for name in ("ana", "bo", "cy"))
    stand = standings(FAIR, {ana: 90.0, bo: 10.0}, [cy])
    assert stand[ana].delay > stand[bo].delay > stand[cy].delay
    assert max(standing.delay for standing in stand.values()) <= FairShare().delay
    sharing = replace(FAIR, standings=stand)
    jobs = [of_band("normal", key, owner=owner, age=age) for key, owner, age in ((1, "ana", 7200), (2, "cy", 60))]
    assert keys(sharing, *jobs) == [2, 1], "ana's counts as submitted hours later"
    jobs[0] = of_band("normal", 1, owner="ana", age=90_000)
    assert keys(sharing, *jobs) == [1, 2], "but never by more than a day"
    sentence = sharing.explanation(jobs[0], NOW)
    assert ": ana (p) recently used 90% of the site; the fair share is 33%." in sentence


def test_shares_of_projects_weigh_their_usage() -> None:
    rules = replace(FAIR, projects={"big": ProjectRules(share=3.0)})
    used = {Account("big", "ana"): 75.0, Account("small", "bo"): 25.0}
    stand = standings(rules, used, ())
    assert stand[Account("big", "ana")].delay == stand[Account("small", "bo")].delay
    assert standings(rules, {}, [Account("big", "ana")]) == {}, "nobody has used anything"
    assert standings(FIRST_COME, used, ()) == {}


def test_usage_loses_half_of_its_weight_in_each_half_life() -> None:
    week = timedelta(days=7)
    assert [decayed(8, age * week, week) for age in (0, 1, 2)] == [8, 4, 2]
    assert decayed(8, -week, week) == 8, "a clock that was set back"


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
