"""A month of a team of twelve on sixteen GPUs, without and with bands, fair share and preemption:

    python -m benchmarks.sharing

writes the table of docs/how-to/sharing.md. The queue is planned by the server's own scheduler; people, jobs and time
are made up, the same for each set of rules.
"""

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.machines import GIGABYTE, ReplicaRequest, Resources
from trainyard_protocol.job.resources import Capacity, Gpu
from trainyard_protocol.job.training_input import Band, Scheduling, TrainingInput
from trainyard_protocol.states import JobState
from trainyard_server.domain.scheduling.preemption import PreemptibleRun, preemption
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang, Part
from trainyard_server.domain.scheduling.scheduler import plan
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

_DAYS, _STEP = 30, timedelta(minutes=5)
_MACHINES, _GPUS = 4, 4
_BEGIN = datetime(2026, 11, 2, tzinfo=UTC)
_KIND = "NVIDIA_A100"
_CHECKPOINT = timedelta(minutes=30)
_TABLE = re.compile(r"(?<=<!-- simulation -->\n).*?(?=<!-- end -->)", re.DOTALL)
_PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "sharing.md"


@dataclass(frozen=True, slots=True)
class Person:
    """Submits `burst` jobs at a time, about `per_day` times on working days, in working hours."""

    name: str
    band: Band
    per_day: float
    burst: int
    gpus: tuple[int, ...]
    hours: tuple[float, float]


TEAM = (
    *(Person(f"sweeper {number}", Band.BATCH, 1.2, 40, (1,), (1.0, 5.0)) for number in (1, 2)),
    *(Person(f"engineer {number}", Band.NORMAL, 2.5, 1, (1, 1, 2), (0.5, 4.0)) for number in range(1, 7)),
    *(Person(f"trainer {number}", Band.NORMAL, 0.7, 1, (4,), (6.0, 20.0)) for number in (1, 2)),
    *(Person(f"production {number}", Band.PRODUCTION, 1.0, 1, (2, 4), (1.0, 3.0)) for number in (1, 2)),
)

RULES: dict[str, Sharing] = {
    "first come, first served": FIRST_COME,
    "bands": FIRST_COME,
    "bands and fair share": Sharing(fair_share=FairShare()),
    "bands, fair share and preemption": Sharing(
        fair_share=FairShare(), default=ProjectRules(preemptible=True), min_run=timedelta(minutes=10)
    ),
}


@dataclass(slots=True)
class Month:
    """Figures of the month: waits for the first run by kind of person, and GPU-hours."""

    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    used: float = 0.0
    lost: float = 0.0
    preempted: int = 0


@dataclass(slots=True)
class _Running:
    job: JobSnapshot
    gangs: tuple[tuple[str, Gang], ...]
    began: datetime
    ends: datetime


def arrivals(seed: int = 1) -> list[tuple[datetime, JobSnapshot, timedelta]]:
    """The jobs of the month, each with its running time."""
    chance = random.Random(seed)  # noqa: S311 - the same each time
    jobs = []
    for person in TEAM:
        for day in range(_DAYS):
            if day % 7 >= 5:
                continue
            for _ in range(_times(chance, person.per_day)):
                at = _BEGIN + timedelta(days=day, hours=chance.uniform(9, 18))
                jobs += [
                    (at, person, chance.choice(person.gpus), chance.uniform(*person.hours)) for _ in range(person.burst)
                ]
    jobs.sort(key=lambda job: job[0])
    return [
        (at, _job(key, person, gpus, at), timedelta(hours=hours))
        for key, (at, person, gpus, hours) in enumerate(jobs, start=1)
    ]


def simulated(rules: Sharing, *, bands: bool) -> Month:
    """The month by these rules."""
    month, now = Month(), _BEGIN
    coming = arrivals()
    left = {job.key: length for _, job, length in coming}
    waiting: dict[int, JobSnapshot] = {}
    running: dict[int, _Running] = {}
    started: set[int] = set()
    used: dict[Account, list[tuple[datetime, float]]] = defaultdict(list)
    while now < _BEGIN + timedelta(days=_DAYS):
        for key in [key for key, run in running.items() if run.ends <= now]:
            run = running.pop(key)
            _note(used, run, now)
        while coming and coming[0][0] <= now:
            _, job, _ = coming.pop(0)
            waiting[job.key] = job if bands else replace(job, training_input=TrainingInput())
        sharing = rules
        if rules.fair_share is not None:
            sharing = replace(rules, standings=standings(rules, _weighted(used, running, now), ()))
        limits = Quotas(sharing=sharing)
        site = _site(running)
        if rules.preempts:
            risks = {
                key: PreemptibleRun(key, _since_checkpoint(run, now).total_seconds() * _gpus_of(run.job))
                for key, run in running.items()
                if run.job.band is Band.BATCH and now - run.began >= rules.min_run
            }
            chosen = preemption(waiting.values(), site, risks, (), now, limits)
            for victim in chosen.victims if chosen is not None else ():
                run = running.pop(victim.key)
                again = _since_checkpoint(run, now)
                month.lost += again.total_seconds() / 3600 * _gpus_of(run.job)
                month.preempted += 1
                left[victim.key] = run.ends - now + again
                waiting[victim.key] = replace(run.job, queued_at=now)
                _note(used, run, now)
            site = _site(running)
        for placement in plan(waiting.values(), site, now, limits).placements:
            job = waiting.pop(placement.key)
            if job.key not in started:
                started.add(job.key)
                month.waits[job.owner.split()[0]].append((now - job.created_at).total_seconds() / 3600)
            gangs = tuple((part.agent_id, _gang(job.key, part)) for part in placement.parts)
            running[job.key] = _Running(job, gangs, now, now + left[job.key])
        month.used += sum(_gpus_of(run.job) for run in running.values()) * _STEP.total_seconds() / 3600
        now += _STEP
    for job in waiting.values():
        if job.key not in started:
            month.waits[job.owner.split()[0]].append((now - job.created_at).total_seconds() / 3600)
    return month


def table(months: dict[str, Month]) -> str:
    """The table, in Markdown."""
    kinds = list(dict.fromkeys(person.name.split()[0] for person in TEAM))
    lines = [
        f"| rules | {' | '.join(kinds)} | GPUs in use | done again after preemption |",
        f"|---|{'---|' * (len(kinds) + 2)}",
    ]
    whole = _DAYS * 24 * _MACHINES * _GPUS
    for name, month in months.items():
        waits = [_wait(month.waits[kind]) for kind in kinds]
        lost = f"{month.lost:.0f} GPU-hours in {month.preempted} runs" if month.preempted else "none"
        lines.append(f"| {name} | {' | '.join(waits)} | {month.used / whole:.0%} | {lost} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    months = {name: simulated(rules, bands=name != "first come, first served") for name, rules in RULES.items()}
    text = table(months)
    print(text)
    page = _PAGE.read_text(encoding="utf-8")
    _PAGE.write_text(_TABLE.sub(lambda _: text, page, count=1), encoding="utf-8")


def _wait(hours: Sequence[float]) -> str:
    ordered = sorted(hours)
    return f"{sum(ordered) / len(ordered):.1f} h, {ordered[len(ordered) * 95 // 100]:.1f} h"


def _times(chance: random.Random, per_day: float) -> int:
    return sum(chance.random() < per_day / 8 for _ in range(8))


def _job(key: int, person: Person, gpus: int, at: datetime) -> JobSnapshot:
    request = ReplicaRequest(Task("master", 0), "gpus", Resources(gpus, gpus * GIGABYTE, _KIND, gpus))
    training_input = TrainingInput(scheduling=Scheduling(band=person.band))
    return JobSnapshot(
        key, "team", f"job_{key}", JobState.QUEUED, training_input, (request,), at, at, owner=person.name
    )


def _site(running: dict[int, _Running]) -> list[AgentSnapshot]:
    gangs: dict[str, list[Gang]] = defaultdict(list)
    for run in running.values():
        for agent, gang in run.gangs:
            gangs[agent].append(gang)
    site = []
    for number in range(_MACHINES):
        name = f"machine-{number}"
        gpus = tuple(Gpu(id=f"{name}-{gpu}", type=_KIND) for gpu in range(_GPUS))
        capacity = Capacity(cpus=tuple(range(64)), memory_bytes=512 * GIGABYTE, gpus=gpus)
        site.append(AgentSnapshot(name, name, capacity, "strict", runs_images=True, gangs=tuple(gangs[name])))
    return site


def _gang(key: int, part: Part) -> Gang:
    return Gang.of(part.assignments, key, "team")


def _gpus_of(job: JobSnapshot) -> int:
    return sum(request.resources.accelerator_count for request in job.gang)


def _since_checkpoint(run: _Running, now: datetime) -> timedelta:
    return (now - run.began) % _CHECKPOINT


def _note(used: dict[Account, list[tuple[datetime, float]]], run: _Running, now: datetime) -> None:
    hours = (now - run.began).total_seconds() / 3600 * _gpus_of(run.job)
    used[Account(run.job.project, run.job.owner)].append((now, hours))


def _weighted(
    used: dict[Account, list[tuple[datetime, float]]], running: dict[int, _Running], now: datetime
) -> dict[Account, float]:
    half_life = FairShare().half_life
    weighted = {
        account: sum(decayed(hours, now - at, half_life) for at, hours in records) for account, records in used.items()
    }
    for run in running.values():
        account = Account(run.job.project, run.job.owner)
        hours = (now - run.began).total_seconds() / 3600 * _gpus_of(run.job)
        weighted[account] = weighted.get(account, 0.0) + hours
    return weighted


if __name__ == "__main__":
    main()
