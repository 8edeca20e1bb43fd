"""Preemption: which batch runs are stopped so that a job of a higher band starts. Pure.

A job gets room only where that is certain to start it: the queue is planned with the runs gone, and with all jobs ahead
of it. Of the sets of runs on one agent that would do, the one with the least work at risk is taken.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from trainyard_protocol.job.keys.scheduling import Band
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import Placement, Planner, in_order
from trainyard_server.domain.scheduling.spreading import NOTHING_SHARED, SharedDirs
from trainyard_server.domain.snapshots import JobSnapshot

_MOST = 200
"""Jobs at the head of the queue that may get room so."""


@dataclass(frozen=True, slots=True)
class PreemptibleRun:
    """A run that may be stopped for others. `key`: of its job; `at_risk`: the GPU-seconds since its last checkpoint,
    which it would do again."""

    key: int
    at_risk: float


@dataclass(frozen=True, slots=True)
class Preemption:
    """The runs that are stopped so that a job starts, the one with the least work at risk first."""

    job: JobSnapshot
    victims: tuple[PreemptibleRun, ...]


def preemption(
    queue: Iterable[JobSnapshot],
    agents: Iterable[AgentSnapshot],
    preemptible: Mapping[int, PreemptibleRun],
    stopping: Collection[int],
    now: datetime,
    limits: Quotas,
    shared: SharedDirs = NOTHING_SHARED,
) -> Preemption | None:
    """The next preemption; None if none helps. `stopping`: the jobs whose runs are being stopped for others, whose room
    is as good as free."""
    sharing = limits.sharing
    site = [_without(agent, stopping) for agent in agents]
    planner = Planner(site, now, limits, shared)
    ahead: list[JobSnapshot] = []
    for job in in_order(queue, sharing, now)[:_MOST]:
        answer = planner.add(job)
        waits_for_room = not isinstance(answer, Placement) and answer.kind == "room"
        if waits_for_room and sharing.is_above(sharing.band_of(job), Band.BATCH):
            victims = _victims(job, site, preemptible, now, limits, shared)
            if victims and _starts(job, ahead, site, victims, now, limits, shared):
                return Preemption(job, victims)
        ahead.append(job)
    return None


def _victims(
    job: JobSnapshot,
    site: Iterable[AgentSnapshot],
    preemptible: Mapping[int, PreemptibleRun],
    now: datetime,
    limits: Quotas,
    shared: SharedDirs,
) -> tuple[PreemptibleRun, ...]:
    """The runs on one agent with the least work at risk whose room the job needs there; none if no agent would do."""
    no_quotas = Quotas(sharing=limits.sharing)  # it waits for room: its project may have what it needs

    def fits(agent: AgentSnapshot, gone: Sequence[PreemptibleRun]) -> bool:
        alone = Planner([_without(agent, [run.key for run in gone])], now, no_quotas, shared)
        return isinstance(alone.add(job), Placement)

    best: tuple[PreemptibleRun, ...] = ()
    for agent in site:
        keys = {gang.key for gang in agent.gangs} & preemptible.keys()
        runs = sorted((preemptible[key] for key in keys), key=lambda run: (run.at_risk, run.key))
        gone: list[PreemptibleRun] = []
        if not agent.accepts_work or not runs or not fits(agent, runs):
            continue
        for run in runs:
            gone.append(run)
            if fits(agent, gone):
                break
        for run in reversed(gone[:-1]):  # perhaps the last one alone is enough
            fewer = [other for other in gone if other is not run]
            if fits(agent, fewer):
                gone = fewer
        if not best or _at_risk(gone) < _at_risk(best):
            best = tuple(gone)
    return best


def _starts(
    job: JobSnapshot,
    ahead: Iterable[JobSnapshot],
    site: Iterable[AgentSnapshot],
    victims: Iterable[PreemptibleRun],
    now: datetime,
    limits: Quotas,
    shared: SharedDirs,
) -> bool:
    """Whether the job starts once the victims are gone, behind the jobs ahead of it."""
    gone = [run.key for run in victims]
    planner = Planner([_without(agent, gone) for agent in site], now, limits, shared)
    for other in ahead:
        planner.add(other)
    return isinstance(planner.add(job), Placement)


def _without(agent: AgentSnapshot, keys: Collection[int]) -> AgentSnapshot:
    """The agent without the gangs of some jobs."""
    gangs = tuple(gang for gang in agent.gangs if gang.key not in keys or gang.ended)
    return agent if len(gangs) == len(agent.gangs) else replace(agent, gangs=gangs)


def _at_risk(runs: Iterable[PreemptibleRun]) -> float:
    return sum(run.at_risk for run in runs)
