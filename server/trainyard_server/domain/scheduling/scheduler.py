"""Gang scheduler. Pure: (queued jobs, agents, quotas, now) -> placements, and for all other jobs why they wait.

Jobs are planned by priority, then age. A gang is placed whole on one agent, or not at all. Only jobs that cannot delay
a job that waits for room may start before it (see `backfill`). A job that backs off before a new run, waits for its
project's quota or can never start delays no job of another project. On an agent in `fit` mode a gang that is larger
than the whole machine is scaled down to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from trainyard_protocol.config.fields import rfc3339
from trainyard_protocol.machines import GIGABYTE
from trainyard_protocol.sync import Capacity
from trainyard_server.domain.scheduling import quotas
from trainyard_server.domain.scheduling.placement import Candidate, Cluster, QuotaBudget
from trainyard_server.domain.scheduling.quotas import Quotas, amount, excess, used_after
from trainyard_server.domain.scheduling.resources import (
    AgentSnapshot,
    Assignment,
    asked,
    has,
    needs,
    scaling,
)
from trainyard_server.domain.snapshots import JobSnapshot

WaitingKind = Literal["room", "quota", "never", "no-agent", "no-engine", "backoff"]


@dataclass(frozen=True, slots=True)
class Placement:
    """A new run. `scaled` is a sentence about how the gang was scaled down, or ""."""

    key: int
    agent_id: str
    assignments: tuple[Assignment, ...]
    scaled: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason that a job waits, and its position in the queue, from 1."""

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
    queued: Iterable[JobSnapshot], agents: Iterable[AgentSnapshot], now: datetime, limits: Quotas = NO_QUOTAS
) -> Plan:
    """Place the jobs that can start now, in order, and give the reason why each other job waits."""
    planner = Planner(agents, now, limits)
    placements: list[Placement] = []
    waiting: dict[int, Waiting] = {}
    for job in in_order(queued):
        answer = planner.add(job)
        if isinstance(answer, Placement):
            placements.append(answer)
        else:
            waiting[job.key] = answer
    return Plan(tuple(placements), waiting)


def beyond_quota(job: JobSnapshot, agents: Iterable[AgentSnapshot], limits: Quotas) -> str:
    """A sentence about the quota that the job alone exceeds, or "". A gang that would be scaled down counts scaled."""
    cluster, allowed = Cluster(agents, limits), limits.of(job.project)
    candidates = [
        candidate
        for alive in (True, False)
        for candidate in cluster.candidates(job.gang, job.needs_images, alive)
    ]
    requested = [candidate.usage for candidate in candidates] or [
        quotas.usage_of(asked(job.gang), _NO_MACHINE)
    ]
    if not all(excess(usage, allowed) for usage in requested):
        return ""
    name = excess(requested[0], allowed)
    request, maximum = amount(name, requested[0][name]), amount(name, allowed[name])
    return f"The request for {request} exceeds the allowed maximum of {maximum}."


def in_order(queued: Iterable[JobSnapshot]) -> list[JobSnapshot]:
    """The queue: by priority, then age."""
    return sorted(queued, key=lambda job: (-job.priority, job.created_at, job.key))


class Planner:
    """A plan while it is made: add jobs in the order of the queue."""

    def __init__(self, agents: Iterable[AgentSnapshot], now: datetime, limits: Quotas = NO_QUOTAS) -> None:
        self._cluster = Cluster(agents, limits)
        self._now = now
        self._ahead = 0

    def add(self, job: JobSnapshot) -> Placement | Waiting:
        """Plan the next job: allocate what it gets, or reserve what it waits for."""
        candidates, answer = self._decide(job)
        budget = self._cluster.budget(job.project)
        if isinstance(answer, Placement):
            node = next(
                candidate.node for candidate in candidates if candidate.node.agent.agent_id == answer.agent_id
            )
            usage = used_after(answer.assignments, node.agent.capacity)
            node.allocate(answer.assignments)
            budget.reservations.allocate(budget.amounts(usage))
        else:
            self._ahead += 1
            _enqueue(candidates, budget, answer.kind)
        return answer

    def would_start(self, job: JobSnapshot) -> bool:
        """Whether the job would start if it were the next. Nothing changes."""
        return isinstance(self._decide(job)[1], Placement)

    def _decide(self, job: JobSnapshot) -> tuple[Sequence[Candidate], Placement | Waiting]:
        """The answer for the job, and its candidates."""
        cluster, ahead = self._cluster, self._ahead
        candidates = cluster.candidates(job.gang, job.needs_images)
        budget = cluster.budget(job.project)
        if job.backoff_until is not None and self._now < job.backoff_until:
            return candidates, Waiting(
                "backoff", f"its next run starts at {rfc3339(job.backoff_until)}", ahead + 1
            )
        if not candidates:
            silent = cluster.candidates(job.gang, job.needs_images, alive=False)
            return silent, _no_candidate(job, cluster, silent, ahead + 1)
        affordable = [
            candidate for candidate in candidates if budget.reservations.fits(budget.amounts(candidate.usage))
        ]
        roomy = [candidate for candidate in affordable if candidate.node.reservations.fits(candidate.amounts)]
        refused = candidates[0].usage if not affordable else None
        for candidate in roomy:
            placement = _placement(job, candidate, budget)
            if isinstance(placement, Placement):
                return candidates, placement
            refused = refused or placement
        if refused is not None:
            return candidates, Waiting("quota", _quota_reason(job, refused, budget, ahead), ahead + 1)
        return candidates, Waiting("room", _room_reason(job, affordable, roomy, ahead), ahead + 1)


def _placement(
    job: JobSnapshot, candidate: Candidate, budget: QuotaBudget
) -> Placement | quotas.Usage | None:
    """The placement there, its use where the quota forbids it, or None where it could delay others."""
    node = candidate.node
    held, usage = candidate.amounts, candidate.usage
    if candidate.any_devices:  # their types are known when they are assigned
        assignments = node.assign(candidate.shares)
        held, usage = node.amounts_of(assignments), used_after(assignments, node.agent.capacity)
    counted, devices = budget.amounts(usage), usage.get(quotas.GPUS, 0) > 0
    if not node.reservations.can_backfill(held, devices):
        return None
    if not (budget.reservations.fits(counted) and budget.reservations.can_backfill(counted, devices)):
        return usage
    assignments = node.assign(candidate.shares)
    return Placement(
        job.key, node.agent.agent_id, assignments, scaling(job.gang, candidate.shares, node.agent)
    )


def _enqueue(candidates: Iterable[Candidate], budget: QuotaBudget, kind: WaitingKind) -> None:
    """Queue the job: reserve what it waits for, and let the jobs behind it expect the rest."""
    for candidate in candidates:
        room = candidate.node.reservations
        (room.reserve if kind == "room" else room.expect)(candidate.amounts, candidate.any_devices)
    quota = budget.reservations
    for counted in {budget.amounts(candidate.usage) for candidate in candidates}:
        unclear = budget.names_types and any(candidate.any_devices for candidate in candidates)
        (quota.reserve if kind in ("room", "quota") else quota.expect)(counted, unclear)


def _room_reason(
    job: JobSnapshot, candidates: Sequence[Candidate], roomy: Sequence[Candidate], ahead: int
) -> str:
    """Resources that are missing on the agent with the most free resources, and the number of jobs ahead."""
    if roomy:
        reason = f"needs {needs(job.gang)}; agent {roomy[0].node.agent.name} has room for it, reserved for jobs ahead"
        return reason + _ahead(ahead)
    node = max((candidate.node for candidate in candidates), key=lambda node: node.reservations.free[:2])
    agent, capacity = node.agent, node.agent.capacity
    cpus, memory = len(capacity.cpus), capacity.memory_bytes
    requested_memory = sum(request.resources.memory_bytes for request in job.gang)
    reason = f"needs {needs(job.gang)}; agent {agent.name} has {cpus} vCPU, of which {len(node.free_cpus)} are free"
    if min(requested_memory, memory) > node.free_memory:
        reason += f", and {memory / GIGABYTE:.1f} GB, of which {node.free_memory / GIGABYTE:.1f} are free"
    if capacity.gpus and any(request.resources.accelerator_count for request in job.gang):
        reason += f", and {len(capacity.gpus)} GPUs, of which {len(node.free_gpus)} are free"
    return reason + _ahead(ahead)


def _quota_reason(job: JobSnapshot, requested: quotas.Usage, budget: QuotaBudget, ahead: int) -> str:
    """The quota that the job exceeds, and its use."""
    limits = budget.limits
    if name := excess(requested, limits):
        allowed = f"may use {amount(name, limits[name])}"
        return f"project {job.project} {allowed}, and the job alone needs {requested[name]}"
    left = {name: limit - budget.used(name) for name, limit in limits.items()}
    name = excess(requested, left)
    if not name:
        return f"what is left of the quota of project {job.project} is reserved for its jobs ahead{_ahead(ahead)}"
    used = f"uses {budget.used(name)} of its {amount(name, limits[name])}"
    return f"project {job.project} {used}; the job needs {requested.get(name, 0)}{_ahead(ahead)}"


def _ahead(ahead: int) -> str:
    return f"; {ahead} {'job' if ahead == 1 else 'jobs'} ahead" if ahead else ""


def _no_candidate(job: JobSnapshot, cluster: Cluster, silent: Sequence[Candidate], position: int) -> Waiting:
    if not cluster.nodes:
        return Waiting("no-agent", "no agent has connected to this server yet", position)
    compatible = cluster.compatible(job.needs_images)
    if not compatible:
        return Waiting(
            "never",
            "can never start on the agents here: it brings a container image, and "
            f"{', '.join(node.agent.name for node in cluster.nodes)} cannot run images",
            position,
        )
    if away := [candidate.node.agent for candidate in silent if candidate.node.agent.alive]:
        problems = ", and ".join(f"on agent {agent.name} {agent.engine_problem}" for agent in away)
        return Waiting("no-engine", f"needs a container engine: {problems}", position)
    if silent:
        names = ", ".join(candidate.node.agent.name for candidate in silent)
        return Waiting("no-agent", f"waits for agent {names}, which is silent at the moment", position)
    largest = max(
        (node.agent for node in compatible), key=lambda a: (len(a.capacity.cpus), a.capacity.memory_bytes)
    )
    return Waiting(
        "never",
        f"can never start on the agents here: needs {needs(job.gang)}; "
        f"the largest agent, {largest.name}, has {has(largest.capacity)}",
        position,
    )
