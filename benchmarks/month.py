"""A month of a team of fourteen on sixteen GPUs: hours that preempted runs do again, and how long jobs wait.

    python -m benchmarks.month

The queue and preemption are planned by the server's own functions. People, jobs and time are simulated, the same for
each rule: each program saves and announces a checkpoint every 20 to 40 minutes.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.keys.scheduling import Band, Scheduling
from trainyard_protocol.job.machines import ReplicaRequest, Resources
from trainyard_protocol.job.resources import GIGABYTE, Capacity, Gpu
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import JobState
from trainyard_server.capabilities.preemption.rules import PreemptibleRun, is_due, preemption
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.scheduling.scheduler import plan
from trainyard_server.domain.scheduling.sharing import ProjectRules, Sharing
from trainyard_server.domain.snapshots import JobSnapshot

_DAYS, _STEP = 30, timedelta(minutes=5)
_MACHINES, _GPUS = 4, 4
_BEGIN = datetime(2026, 11, 2, tzinfo=UTC)
_KIND = "NVIDIA_A100"
_HOUR = timedelta(hours=1)


class Person(NamedTuple):
    """A person who submits `burst` jobs at a time, so often on a working day, of so many GPUs and hours."""

    kind: str
    band: Band
    per_day: float
    burst: int
    gpus: Sequence[int]
    hours: tuple[float, float]


TEAM = (
    *[Person("sweeps", Band.BATCH, 1.2, 40, (1,), (1.0, 5.0))] * 2,
    *[Person("experiments", Band.NORMAL, 2.5, 1, (1, 1, 2), (0.5, 4.0))] * 6,
    *[Person("trainings", Band.NORMAL, 0.5, 1, (4,), (6.0, 20.0))] * 2,
    *[Person("gangs", Band.NORMAL, 0.2, 1, (8,), (2.0, 8.0))] * 2,
    *[Person("production", Band.PRODUCTION, 1.0, 1, (2, 4), (1.0, 3.0))] * 2,
)


class Rule(NamedTuple):
    """The wait of a run that gives way for its next checkpoint, and whether gangs over machines get room."""

    name: str
    wait: timedelta
    gangs: bool


RULES = (
    Rule("at once, for no gang over machines (before)", timedelta(0), gangs=False),
    Rule("at once", timedelta(0), gangs=True),
    *(
        Rule(f"after a checkpoint due in {minutes} min", timedelta(minutes=minutes), gangs=True)
        for minutes in (5, 10, 20, 40)
    ),
)


@dataclass(slots=True)
class Month:
    """Hours until the first run by kind of job, the number of preempted runs, and GPU-hours that they did again."""

    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    preempted: int = 0
    again: float = 0.0


@dataclass(slots=True)
class _Running:
    job: JobSnapshot
    gangs: Sequence[tuple[str, Gang]]
    began: datetime
    ends: datetime
    stops: datetime | None = None

    @property
    def every(self) -> timedelta:
        """The time between two checkpoints."""
        return timedelta(minutes=20 + self.job.key % 21)

    def saved(self, now: datetime) -> datetime:
        """The time of the last checkpoint, or of the start."""
        return now - (now - self.began) % self.every

    def at_risk(self, now: datetime) -> float:
        """The GPU-hours since its last checkpoint."""
        return (now - self.saved(now)) / _HOUR * _gpus(self.job)

    def stop(self, now: datetime, wait: timedelta) -> datetime:
        """The time at which it is stopped: at its next checkpoint if that is due within the wait, else now."""
        saved = self.saved(now)
        return saved + self.every if is_due(saved, self.every, now, wait) else now


def arrivals(seed: int = 1) -> list[tuple[JobSnapshot, timedelta]]:
    """The jobs of the month by time, each with its running time."""
    chance = random.Random(seed)  # noqa: S311 - the same each time
    jobs = []
    for person in TEAM:
        for day in (day for day in range(_DAYS) if day % 7 < 5):
            for _ in range(sum(chance.random() < person.per_day / 8 for _ in range(8))):
                at = _BEGIN + timedelta(days=day, hours=chance.uniform(9, 18))
                jobs += [
                    (at, person, chance.choice(person.gpus), chance.uniform(*person.hours)) for _ in range(person.burst)
                ]
    jobs.sort(key=lambda job: job[0])
    return [(_job(key, *job[:3]), job[3] * _HOUR) for key, job in enumerate(jobs, start=1)]


def simulated(rule: Rule) -> Month:
    """The month by this rule."""
    month, now, coming = Month(), _BEGIN, arrivals()
    limits = Quotas(sharing=Sharing(default=ProjectRules(preemptible=True)))
    left = {job.key: length for job, length in coming}
    waiting, running, started = dict[int, JobSnapshot](), dict[int, _Running](), set[int]()
    while now < _BEGIN + timedelta(days=_DAYS):
        for key, run in list(running.items()):
            if run.ends <= min(now, run.stops or now):
                del running[key]
            elif run.stops is not None and run.stops <= now:
                del running[key]
                month.again += run.at_risk(run.stops)
                month.preempted += 1
                left[key] = run.ends - run.saved(run.stops)
                waiting[key] = replace(run.job, queued_at=run.stops)
        while coming and coming[0][0].created_at <= now:
            job, _ = coming.pop(0)
            waiting[job.key] = job
        for placement in plan(waiting.values(), _site(running), now, limits).placements:
            job = waiting.pop(placement.key)
            if job.key not in started:
                started.add(job.key)
                month.waits[job.owner].append((now - job.created_at) / _HOUR)
            gangs = [(part.agent_id, Gang.of(part.assignments, job.key, "team")) for part in placement.parts]
            running[job.key] = _Running(job, gangs, now, now + left[job.key])
        queue = [job for job in waiting.values() if rule.gangs or len(job.gang) == 1]
        runs = {
            key: PreemptibleRun(key, run.at_risk(run.stop(now, rule.wait)))
            for key, run in running.items()
            if run.stops is None and run.job.band is Band.BATCH and now - run.began >= limits.sharing.min_run
        }
        stopping = {key for key, run in running.items() if run.stops is not None}
        while (chosen := preemption(queue, _site(running), runs, stopping, now, limits)) is not None:
            for victim in chosen.victims:
                run = running[victim.key]
                run.stops = run.stop(now, rule.wait)
                stopping.add(victim.key)
                del runs[victim.key]
        now += _STEP
    return month


def table(months: dict[str, Month]) -> str:
    """The table, in Markdown."""
    kinds = list(dict.fromkeys(person.kind for person in TEAM))
    rows = [["a preempted run is", "runs", "GPU-hours done again", *(f"{kind} wait" for kind in kinds)]]
    rows.append(["---"] * len(rows[0]))
    for name, month in months.items():
        waits = [f"{sum(hours) / len(hours):.2f} h" for hours in (month.waits[kind] for kind in kinds)]
        rows.append([name, str(month.preempted), f"{month.again:.0f}", *waits])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _job(key: int, at: datetime, person: Person, gpus: int) -> JobSnapshot:
    sizes = [_GPUS] * (gpus // _GPUS) if gpus > _GPUS else [gpus]
    tasks = [Task("worker", number - 1) if number else Task("master", 0) for number in range(len(sizes))]
    gang = tuple(
        ReplicaRequest(task, "gpus", Resources(size, size * GIGABYTE, _KIND, size))
        for task, size in zip(tasks, sizes, strict=True)
    )
    training_input = TrainingInput(scheduling=Scheduling(band=person.band))
    return JobSnapshot(key, "team", f"job_{key}", JobState.QUEUED, training_input, gang, at, at, owner=person.kind)


def _site(running: dict[int, _Running]) -> list[AgentSnapshot]:
    gangs: dict[str, list[Gang]] = defaultdict(list)
    for run in running.values():
        for agent, gang in run.gangs:
            gangs[agent].append(gang)
    site = []
    for name in (f"machine-{number}" for number in range(_MACHINES)):
        gpus = tuple(Gpu(id=f"{name}-{gpu}", type=_KIND) for gpu in range(_GPUS))
        capacity = Capacity(cpus=tuple(range(64)), memory_bytes=512 * GIGABYTE, gpus=gpus)
        site.append(
            AgentSnapshot(
                name, name, capacity, "strict", runs_images=True, gangs=tuple(gangs[name]), address="10.0.0.1"
            )
        )
    return site


def _gpus(job: JobSnapshot) -> int:
    return sum(request.resources.accelerator_count for request in job.gang)


if __name__ == "__main__":
    print(table({rule.name: simulated(rule) for rule in RULES}))
