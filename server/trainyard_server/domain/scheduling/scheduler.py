"""Who starts where. Pure: (queued jobs, agents, quotas, now) -> placements, and for the rest why they wait.

Jobs are taken by priority, then age. A gang is placed on one agent whole or not at all. A job that must wait for
room is passed only by jobs that cannot delay it, whatever ends when (see `backfill`); one that rests before a new
run, waits for its project's quota or can never start here holds back nobody of another project. On an agent in `fit`
mode a gang larger than the whole machine is scaled down to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.machines import GIGABYTE, ReplicaRequest
from trainyard_protocol.sync import Capacity
from trainyard_server.domain.scheduling import quotas
from trainyard_server.domain.scheduling.placement import Allowance, Home, Yard
from trainyard_server.domain.scheduling.quotas import Quotas, amount, excess, used_after
from trainyard_server.domain.scheduling.resources import (
    Agent,
    Assignment,
    asked,
    has,
    needs,
    scaling,
)

WaitingKind = Literal["room", "quota", "never", "no-agent", "rest"]


@dataclass(frozen=True, slots=True)
class Queued:
    """A job that waits for a run. `gang` is never empty."""

    key: int
    priority: int
    created_at: datetime
    gang: tuple[ReplicaRequest, ...]
    needs_images: bool = False
    not_before: datetime | None = None
    project: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """A new run. `scaled` says what was asked and what is given where the gang was scaled down, else ""."""

    key: int
    agent_id: str
    assignments: tuple[Assignment, ...]
    scaled: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a job waits, and its place in the queue, from 1."""

    kind: WaitingKind
    reason: str
    position: int


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...] = ()
    waiting: Mapping[int, Waiting] = field(default_factory=dict)


NO_QUOTAS = Quotas()

_NO_MACHINE = Capacity(cpus=(), memory_bytes=0)


def plan(
    queued: Iterable[Queued], agents: Iterable[Agent], now: datetime, limits: Quotas = NO_QUOTAS
) -> Plan:
    """Places what can start now, in order, and says of everyone else what it waits for."""
    planner = Planner(agents, now, limits)
    placements: list[Placement] = []
    waiting: dict[int, Waiting] = {}
    for job in in_order(queued):
        answer = planner.take(job)
        if isinstance(answer, Placement):
            placements.append(answer)
        else:
            waiting[job.key] = answer
    return Plan(tuple(placements), waiting)


def beyond_quota(job: Queued, agents: Iterable[Agent], limits: Quotas) -> str:
    """Of what the job alone needs more than its project may ever use, with both numbers; "" if of nothing.

    A gang that would be scaled down on the agents here counts for what it would get.
    """
    yard, allowed = Yard(agents, limits), limits.of(job.project)
    homes = [home for alive in (True, False) for home in yard.homes(job.gang, job.needs_images, alive)]
    wanted = [home.usage for home in homes] or [quotas.wanted_by(asked(job.gang), _NO_MACHINE)]
    if not all(excess(usage, allowed) for usage in wanted):
        return ""
    name = excess(wanted[0], allowed)
    request, maximum = amount(name, wanted[0][name]), amount(name, allowed[name])
    return f"The request for {request} exceeds the allowed maximum of {maximum}."


def in_order(queued: Iterable[Queued]) -> list[Queued]:
    """The queue: by priority, then age."""
    return sorted(queued, key=lambda job: (-job.priority, job.created_at, job.key))


class Planner:
    """A plan while it is made: jobs are taken in the order of the queue."""

    def __init__(self, agents: Iterable[Agent], now: datetime, limits: Quotas = NO_QUOTAS) -> None:
        self._yard = Yard(agents, limits)
        self._now = now
        self._ahead = 0

    def take(self, job: Queued) -> Placement | Waiting:
        """What becomes of the next job. What it gets is gone, and what it waits for is kept for it."""
        homes, answer = self._decide(job)
        allowance = self._yard.allowance(job.project)
        if isinstance(answer, Placement):
            host = next(home.host for home in homes if home.host.agent.agent_id == answer.agent_id)
            usage = used_after(answer.assignments, host.agent.capacity)
            host.hold(answer.assignments)
            allowance.ledger.hold(allowance.amounts(usage))
        else:
            self._ahead += 1
            _line_up(homes, allowance, answer.kind)
        return answer

    def would_start(self, job: Queued) -> bool:
        """Whether the job would start if it were the next. Nothing changes."""
        return isinstance(self._decide(job)[1], Placement)

    def _decide(self, job: Queued) -> tuple[Sequence[Home], Placement | Waiting]:
        """What becomes of the job, and where it can be at home."""
        yard, ahead = self._yard, self._ahead
        homes = yard.homes(job.gang, job.needs_images)
        allowance = yard.allowance(job.project)
        if job.not_before is not None and self._now < job.not_before:
            return homes, Waiting("rest", f"its next run starts at {rfc3339(job.not_before)}", ahead + 1)
        if not homes:
            silent = yard.homes(job.gang, job.needs_images, alive=False)
            return silent, _homeless(job, yard, silent, ahead + 1)
        affordable = [home for home in homes if allowance.ledger.fits(allowance.amounts(home.usage))]
        roomy = [home for home in affordable if home.host.ledger.fits(home.amounts)]
        refused = homes[0].usage if not affordable else None
        for home in roomy:
            placement = _placement(job, home, allowance)
            if isinstance(placement, Placement):
                return homes, placement
            refused = refused or placement
        if refused is not None:
            return homes, Waiting("quota", _over_quota(job, refused, allowance, ahead), ahead + 1)
        return homes, Waiting("room", _room(job, affordable, roomy, ahead), ahead + 1)


def _placement(job: Queued, home: Home, allowance: Allowance) -> Placement | quotas.Usage | None:
    """The placement there; what it would use where the quota forbids it; None where it could delay others."""
    host = home.host
    held, usage = home.amounts, home.usage
    if home.any_devices:  # which ones it gets is known when it gets them
        assignments = host.give(home.shares)
        held, usage = host.as_given(assignments), used_after(assignments, host.agent.capacity)
    counted, devices = allowance.amounts(usage), usage.get(quotas.GPUS, 0) > 0
    if not host.ledger.harmless(held, devices):
        return None
    if not (allowance.ledger.fits(counted) and allowance.ledger.harmless(counted, devices)):
        return usage
    assignments = host.give(home.shares)
    return Placement(job.key, host.agent.agent_id, assignments, scaling(job.gang, home.shares, host.agent))


def _line_up(homes: Iterable[Home], allowance: Allowance, kind: WaitingKind) -> None:
    """The job waits: what it may come to hold is known to all behind it, and what it waits for is kept for it."""
    for home in homes:
        room = home.host.ledger
        (room.protect if kind == "room" else room.expect)(home.amounts, home.any_devices)
    quota = allowance.ledger
    for counted in {allowance.amounts(home.usage) for home in homes}:
        unclear = allowance.names_types and any(home.any_devices for home in homes)
        (quota.protect if kind in ("room", "quota") else quota.expect)(counted, unclear)


def _room(job: Queued, homes: Sequence[Home], roomy: Sequence[Home], ahead: int) -> str:
    """What is missing on the agent that comes nearest, and who is first."""
    if roomy:
        reason = (
            f"needs {needs(job.gang)}; agent {roomy[0].host.agent.name} has room for it, kept for jobs ahead"
        )
        return reason + _ahead(ahead)
    host = max((home.host for home in homes), key=lambda host: host.ledger.free[:2])
    agent, capacity = host.agent, host.agent.capacity
    cpus, memory = len(capacity.cpus), capacity.memory_bytes
    wanted_memory = sum(request.resources.memory_bytes for request in job.gang)
    reason = f"needs {needs(job.gang)}; agent {agent.name} has {cpus} vCPU, of which {len(host.free_cpus)} are free"
    if min(wanted_memory, memory) > host.free_memory:
        reason += f", and {memory / GIGABYTE:.1f} GB, of which {host.free_memory / GIGABYTE:.1f} are free"
    if capacity.gpus and any(request.resources.accelerator_count for request in job.gang):
        reason += f", and {len(capacity.gpus)} GPUs, of which {len(host.free_gpus)} are free"
    return reason + _ahead(ahead)


def _over_quota(job: Queued, wanted: quotas.Usage, allowance: Allowance, ahead: int) -> str:
    """What the project uses of what the job lacks."""
    limits = allowance.limits
    if name := excess(wanted, limits):
        allowed = f"may use {amount(name, limits[name])}"
        return f"project {job.project} {allowed}, and the job alone needs {wanted[name]}"
    left = {name: limit - allowance.used(name) for name, limit in limits.items()}
    name = excess(wanted, left)
    if not name:
        return f"what is left of the quota of project {job.project} is kept for its jobs ahead{_ahead(ahead)}"
    used = f"uses {allowance.used(name)} of its {amount(name, limits[name])}"
    return f"project {job.project} {used}; the job needs {wanted.get(name, 0)}{_ahead(ahead)}"


def _ahead(ahead: int) -> str:
    return f"; {ahead} {'job' if ahead == 1 else 'jobs'} ahead" if ahead else ""


def _homeless(job: Queued, yard: Yard, silent: Sequence[Home], position: int) -> Waiting:
    if not yard.hosts:
        return Waiting("no-agent", "no agent has connected to this server yet", position)
    suited = yard.suited(job.needs_images)
    if not suited:
        return Waiting(
            "never",
            "can never start on the agents here: it brings a container image, and "
            f"{', '.join(host.agent.name for host in yard.hosts)} cannot run images",
            position,
        )
    if silent:
        names = ", ".join(home.host.agent.name for home in silent)
        return Waiting("no-agent", f"waits for agent {names}, which is silent at the moment", position)
    largest = max(
        (host.agent for host in suited), key=lambda a: (len(a.capacity.cpus), a.capacity.memory_bytes)
    )
    return Waiting(
        "never",
        f"can never start on the agents here: needs {needs(job.gang)}; "
        f"the largest agent, {largest.name}, has {has(largest.capacity)}",
        position,
    )
