"""Preemption: which batch runs are stopped so that a job of a higher band starts. Pure.

A job gets room only where that is certain to start it: the queue is planned with the runs gone, and with all jobs ahead
of it. Of the sets of runs on one agent that would do, the one with the least work at risk is taken; where a gang needs
several agents, of those on the agents of one group. No run is in a set without which the job would start as well.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainyard_protocol.job.keys.scheduling import Band
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import Placement, Planner, in_order
from trainyard_server.domain.scheduling.spreading import NOTHING_SHARED, SharedDirs
from trainyard_server.domain.snapshots import JobSnapshot

_MOST = 200
"""Jobs at the head of the queue that may get room so."""

_LINES_COME = timedelta(seconds=30)
"""The time in which the line about a checkpoint has certainly come from its machine."""

_TRIED = 3
"""Sets of runs that are tried for each of them: jobs ahead may get the room of the first."""


@dataclass(frozen=True, slots=True)
class PreemptibleRun:
    """A run that may be stopped for others. `key`: of its job; `at_risk`: the GPU-seconds since its last checkpoint,
    which it would do again; none where the next one is waited for."""

    key: int
    at_risk: float


def is_due(saved_at: datetime, every: timedelta, now: datetime, wait: timedelta) -> bool:
    """Whether a program that last saved at a time, and saves so often, is likely to save within `wait`. One that is
    late by half of its usual time may not save any more: every minute of waiting is work that may be lost as well."""
    due = saved_at + every
    return now <= due + max(every / 2, _LINES_COME) and due + every / 20 <= now + wait


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

            def start(gone: Iterable[PreemptibleRun], job: JobSnapshot = job) -> bool:
                return _starts(job, ahead, site, gone, now, limits, shared)

            for victims in _sets(job, site, preemptible, now, limits, shared)[:_TRIED]:
                if start(victims):
                    return Preemption(job, _needed(victims, start))
        ahead.append(job)
    return None


def starting(
    queue: Iterable[JobSnapshot],
    agents: Iterable[AgentSnapshot],
    stopping: Collection[int],
    now: datetime,
    limits: Quotas,
    shared: SharedDirs = NOTHING_SHARED,
) -> frozenset[int]:
    """The jobs that start once the runs of others are stopped."""
    planner = Planner([_without(agent, stopping) for agent in agents], now, limits, shared)
    jobs = in_order(queue, limits.sharing, now)[:_MOST]
    return frozenset(job.key for job in jobs if isinstance(planner.add(job), Placement))


def _sets(
    job: JobSnapshot,
    site: Iterable[AgentSnapshot],
    preemptible: Mapping[int, PreemptibleRun],
    now: datetime,
    limits: Quotas,
    shared: SharedDirs,
) -> Sequence[tuple[PreemptibleRun, ...]]:
    """The sets of runs whose room would hold the job on one agent, or else on those of one group: that with the least
    work at risk first."""
    no_quotas = Quotas(sharing=limits.sharing)  # it waits for room: its project may have what it needs
    groups: dict[str, list[AgentSnapshot]] = defaultdict(list)
    for agent in site:
        if agent.accepts_work:
            groups[agent.group].append(agent)

    def fewest(agents: Sequence[AgentSnapshot]) -> tuple[PreemptibleRun, ...]:
        def placed(gone: Iterable[PreemptibleRun]) -> Placement | None:
            keys = {run.key for run in gone}
            answer = Planner([_without(agent, keys) for agent in agents], now, no_quotas, shared).add(job)
            return answer if isinstance(answer, Placement) else None

        held = {agent.agent_id: {gang.key for gang in agent.gangs} & preemptible.keys() for agent in agents}
        every = (preemptible[key] for key in set[int]().union(*held.values()))
        runs = sorted(every, key=lambda run: (run.at_risk, run.key))
        if not runs or placed(runs) is None:
            return ()
        counts = range(1, len(runs))
        runs = runs[: bisect_left(counts, True, key=lambda count: placed(runs[:count]) is not None) + 1]
        placement = placed(runs)
        if placement is not None and len(placement.parts) < len(agents):  # of many, most are on other agents
            near = set[int]().union(*(held[part.agent_id] for part in placement.parts))
            fewer = [run for run in runs if run.key in near]
            runs = fewer if fewer and placed(fewer) is not None else runs
        return _needed(runs, lambda fewer: placed(fewer) is not None)

    for places in ([[agent] for agents in groups.values() for agent in agents], groups.values()):
        if sets := list(filter(None, map(fewest, places))):
            return sorted(sets, key=_at_risk)
    return ()


def _needed(
    runs: Sequence[PreemptibleRun], is_enough: Callable[[Sequence[PreemptibleRun]], bool]
) -> tuple[PreemptibleRun, ...]:
    """These runs without those, first the ones with the most work at risk, without which the others are enough. At
    least one stays: the job waits."""
    needed = list(runs)
    for run in reversed(runs):
        fewer = [other for other in needed if other is not run]
        if fewer and is_enough(fewer):
            needed = fewer
    return tuple(needed)


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
