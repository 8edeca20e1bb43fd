"""Gang scheduler. Pure: (queued jobs, agents, quotas, now) -> placements, and for all other jobs why they wait.

Jobs are planned by band, priority and age (`sharing`). A gang is placed whole, or not at all: on one agent, or where
none could hold it on several (`spreading`). Only jobs that cannot delay a job that waits for room may start before it
(see `backfill`). A job that backs off before a new run, waits for its project's quota or can never start delays no job
of another project. On an agent in `fit` mode a gang that is larger than the whole machine is scaled down to it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.job.machines import ReplicaRequest
from trainyard_protocol.job.resources import GIGABYTE, Capacity, is_tpu
from trainyard_server.domain.scheduling import quotas
from trainyard_server.domain.scheduling.placement import Candidate, Cluster, Group, Node, QuotaBudget, room_of
from trainyard_server.domain.scheduling.quotas import Quotas, amount, excess, used_after
from trainyard_server.domain.scheduling.resources import (
    AgentSnapshot,
    Assignment,
    Needs,
    Part,
    ResourceShare,
    asked,
    describe,
    full_queue,
    has,
    memory_of,
    needs,
    needs_on,
    scaling,
    without_gpus,
)
from trainyard_server.domain.scheduling.sharing import Sharing
from trainyard_server.domain.scheduling.spreading import NOTHING_SHARED, Rooms, SharedDirs, Spread, listed, spread
from trainyard_server.domain.snapshots import JobSnapshot, workers_of

WaitingKind = Literal["room", "quota", "never", "apart", "no-agent", "no-engine", "no-disk", "no-mount", "backoff"]


@dataclass(frozen=True, slots=True)
class Placement:
    """A new run. `scaled` is a sentence about how the gang was scaled down, `spread` one about where its parts are,
    `without_gpus` one about replicas that asked for GPUs and have none; each may be ""."""

    key: int
    parts: tuple[Part, ...]
    scaled: str = ""
    spread: str = ""
    without_gpus: str = ""

    @property
    def agent_id(self) -> str:
        """The agent with the primary."""
        return self.parts[0].agent_id

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        return tuple(assignment for part in self.parts for assignment in part.assignments)


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

_ITS_LAST_RUN = "on which its last run failed"
_NO_MACHINE = Capacity(cpus=(), memory_bytes=0)


def plan(
    queued: Iterable[JobSnapshot],
    agents: Iterable[AgentSnapshot],
    now: datetime,
    limits: Quotas = NO_QUOTAS,
    shared: SharedDirs = NOTHING_SHARED,
) -> Plan:
    """Place the jobs that can start now, in order, and give the reason why each other job waits."""
    planner = Planner(agents, now, limits, shared)
    placements: list[Placement] = []
    waiting: dict[int, Waiting] = {}
    for job in in_order(queued, limits.sharing, now):
        answer = planner.add(job)
        if isinstance(answer, Placement):
            placements.append(answer)
        else:
            waiting[job.key] = answer
    return Plan(tuple(placements), waiting)


def beyond_quota(
    job: JobSnapshot, agents: Iterable[AgentSnapshot], limits: Quotas, shared: SharedDirs = NOTHING_SHARED
) -> str:
    """A sentence about the quota that the job alone exceeds, or "". A gang that would be scaled down counts scaled."""
    cluster, allowed = Cluster(agents, limits), limits.of(job.project)
    spreads = shared.lets_spread(job.training_input)
    candidates = [
        candidate for alive in (True, False) for candidate in cluster.candidates(job.gang, job.needs, alive, spreads)
    ]
    requested = [candidate.usage for candidate in candidates] or [quotas.usage_of(asked(job.gang), _NO_MACHINE)]
    if not all(excess(usage, allowed) for usage in requested):
        return ""
    name = excess(requested[0], allowed)
    request, maximum = amount(name, requested[0][name]), amount(name, allowed[name])
    return f"The request for {request} exceeds the allowed maximum of {maximum}."


def unshared(job: JobSnapshot, agents: Iterable[AgentSnapshot], shared: SharedDirs) -> str:
    """A clause about agents that could hold the gang only together, and share no job-dir for it; "" if it may start."""
    cluster = Cluster(agents, NO_QUOTAS)
    if shared.lets_spread(job.training_input) or cluster.candidates(job.gang, job.needs):
        return ""
    if not cluster.candidates(job.gang, job.needs, spreads=True):
        return ""
    return _together(job, [node.agent for node in cluster.compatible(job.needs)], shared)


def in_order(queued: Iterable[JobSnapshot], sharing: Sharing, now: datetime) -> list[JobSnapshot]:
    """The queue: by band, priority and age, as `sharing` says."""
    return sorted(queued, key=lambda job: sharing.order(job, now))


class Planner:
    """A plan while it is made: add jobs in the order of the queue."""

    def __init__(
        self,
        agents: Iterable[AgentSnapshot],
        now: datetime,
        limits: Quotas = NO_QUOTAS,
        shared: SharedDirs = NOTHING_SHARED,
    ) -> None:
        self._cluster = Cluster(agents, limits)
        self._now = now
        self._shared = shared
        self._avoided = {
            node.agent.agent_id: node.agent.avoided_until
            for node in self._cluster.nodes
            if node.agent.avoided_until is not None and now < node.agent.avoided_until
        }
        """The agents that retries avoid, since runs have failed of them."""
        self._ahead = 0
        self._allocations = 0
        # Reasons of groups that wait for room, each after so many allocations; and of those that no agent takes now.
        self._full: dict[Group, tuple[int, str]] = {}
        self._closed: dict[Group, Waiting] = {}

    def add(self, job: JobSnapshot) -> Placement | Waiting:
        """Plan the next job: allocate what it gets, or reserve what it waits for."""
        group, answer = self._decide(job)
        budget = self._cluster.budget(job.project)
        if isinstance(answer, Placement):
            self._allocations += 1
            usage: quotas.Usage = {}
            for part in answer.parts:
                node = next(c.node for c in group.candidates if c.node.agent.agent_id == part.agent_id)
                usage = quotas.together(usage, used_after(part.assignments, node.agent.capacity))
                node.allocate(part.assignments)
            budget.reservations.allocate(budget.amounts(usage))
        else:
            self._ahead += 1
            _enqueue(group, budget, answer.kind)
        return answer

    def is_full(self, least: int, least_spread: int | None = None) -> bool:
        """Whether no gang of `least` vCPU or more fits anywhere, nor one of `least_spread` on several agents together.
        A gang that is larger than its machine is scaled to that."""
        nodes = self._cluster.nodes
        if least_spread is not None and least_spread <= sum(n.free_vcpus for n in nodes if n.agent.address):
            return False
        return all(node.free_vcpus < min(least, node.agent.capacity.vcpus) for node in nodes)

    def would_start(self, job: JobSnapshot) -> bool:
        """Whether the job would start if it were the next. Nothing changes."""
        return isinstance(self._decide(job)[1], Placement)

    def _decide(self, job: JobSnapshot) -> tuple[Group, Placement | Waiting]:
        """The answer for the job, and its group. One that may have fewer workers has as many as the machines hold
        before it is scaled down, and a retry of it as many as have room."""
        if not job.least_workers:
            return self._decide_whole(job)
        most = self.unscaled(job)
        group, answer = self._decide_whole(most)
        if isinstance(answer, Placement):
            return group, _with_fewer(job, answer)
        if job.is_retry and answer.kind in ("room", "apart", "no-agent", "never"):
            for smaller in most.smaller():
                of_less, less = self._decide_whole(smaller)
                if isinstance(less, Placement):
                    return of_less, _with_fewer(job, less)
        return group, answer

    def unscaled(self, job: JobSnapshot) -> JobSnapshot:
        """The job; if its gang would be scaled down, with the largest smaller one that would not, if it may have one
        and its quota allows that."""
        if not job.least_workers or not self._group(job).is_scaled:
            return job
        limits = self._cluster.budget(job.project).limits
        for smaller in job.smaller():
            group = self._group(smaller)
            if not group.is_scaled and any(not excess(usage, limits) for usage in group.usages):
                return smaller
        return job

    def _group(self, job: JobSnapshot) -> Group:
        spreads = self._shared.lets_spread(job.training_input)
        return self._cluster.group(job.gang, job.needs, avoided=frozenset(self._avoids(job)), spreads=spreads)

    def _decide_whole(self, job: JobSnapshot) -> tuple[Group, Placement | Waiting]:
        """The answer for the job with its whole gang, and its group."""
        cluster, ahead, group = self._cluster, self._ahead, self._group(job)
        if job.backoff_until is not None and job.backs_off(self._now):
            return group, Waiting("backoff", f"its next run starts at {rfc3339(job.backoff_until)}", ahead + 1)
        if not group.candidates:
            return self._without_candidates(job, ahead + 1)
        budget = cluster.budget(job.project)
        full = self._full.get(group) if not budget.limits else None
        if full is not None and full[0] == self._allocations:
            return group, Waiting("room", full[1] + self._about_avoided(job) + _ahead(ahead), ahead + 1)
        affordable, roomy = _affordable(group, budget, group.roomy(self._allocations))
        refused = group.candidates[0].usage if not affordable else None
        if group.members and affordable:
            placement = _spread_placement(job, group, budget, self._allocations)
            if isinstance(placement, Placement):
                return group, placement
            refused = placement
        for candidate in roomy if full is None and not group.members else ():
            placement = _placement(job, candidate, budget)
            if isinstance(placement, Placement):
                if placement.scaled:
                    placement = replace(placement, scaled=placement.scaled + self._unused(job, candidate))
                return group, placement
            refused = refused or placement
        if refused is not None:
            return group, Waiting("quota", _quota_reason(job, refused, budget, ahead), ahead + 1)
        reason = (
            _spread_reason(job, group, self._allocations, cluster.about_apart(job.needs))
            if group.members
            else _room_reason(job, affordable, roomy)
        )
        if not budget.limits:
            # Later answers only get stricter: no gang of the group starts in this plan any more.
            self._full[group] = (self._allocations, reason)
        return group, Waiting("room", reason + self._about_avoided(job) + _ahead(ahead), ahead + 1)

    def pauses(self, job: JobSnapshot) -> Iterator[datetime]:
        """The ends of what holds the job back now, or keeps it from an agent."""
        yield from job.pauses(self._now)
        if job.is_retry:
            yield from self._avoided.values()

    def _avoids(self, job: JobSnapshot) -> Mapping[str, tuple[datetime, str]]:
        """The agents that the job avoids: until when, and why."""
        avoided = {}
        if job.is_retry:
            avoided = {agent: (until, "of which runs have failed") for agent, until in self._avoided.items()}
        if (own := job.avoided(self._now)) and job.avoids is not None:
            avoided[own] = (max(job.avoids.until, avoided.get(own, (job.avoids.until,))[0]), _ITS_LAST_RUN)
        return avoided

    def _about_avoided(self, job: JobSnapshot) -> str:
        """Clauses about the agents that the job avoids, if they could hold it; "" without one."""
        avoided = self._avoids(job)
        if not avoided:
            return ""
        clauses = []
        spreads = self._shared.lets_spread(job.training_input)
        for candidate in self._cluster.candidates(job.gang, job.needs, spreads=spreads):
            if candidate.node.agent.agent_id in avoided:
                until, why = avoided[candidate.node.agent.agent_id]
                end = rfc3339(until.replace(microsecond=0))
                clauses.append(f"; agent {candidate.node.agent.name}, {why}, is avoided until {end}")
        return "".join(clauses)

    def _without_candidates(self, job: JobSnapshot, position: int) -> tuple[Group, Waiting]:
        """The group of the agents that could take the job at another time, and the reason that none does now."""
        spreads = self._shared.lets_spread(job.training_input)
        silent = self._cluster.group(job.gang, job.needs, alive=False, spreads=spreads)
        group = self._cluster.group(job.gang, job.needs, spreads=spreads)
        if group not in self._closed:
            kind, reason = _no_candidate(job, self._cluster, silent.candidates, self._shared)
            apart = self._cluster.about_apart(job.needs, job.gang) if spreads else ""
            if apart and kind == "never":
                kind, reason = "apart", f"needs {needs(job.gang)} on several agents that reach each other"
            self._closed[group] = Waiting(kind, f"{reason}; {apart}" if apart else reason, position)
        return silent, replace(self._closed[group], position=position)

    def _unused(self, job: JobSnapshot, chosen: Candidate) -> str:
        """A sentence about agents that could have taken a part of a gang that is scaled down to one; "" without any."""
        open_ones = [node.agent for node in self._cluster.compatible(job.needs) if node.agent.accepts_work]
        if several := _together(job, open_ones, self._shared):
            return f" {several}."
        idle = [agent.name for agent in open_ones if agent is not chosen.node.agent and not agent.gangs]
        verb = "is" if len(idle) == 1 else "are"
        return f" {listed(idle)} {verb} idle, but a gang is scaled down to one agent." if idle else ""


def _with_fewer(job: JobSnapshot, placement: Placement) -> Placement:
    """The placement, which says so if it has fewer workers than the job asks for."""
    count, of = len(placement.assignments), len(job.gang)
    if count == of:
        return placement
    workers = len(workers_of(job.gang))
    scaled = f"Starting with {workers - (of - count)} of {workers} workers, because there is no room for all."
    return replace(placement, scaled=f"{scaled} {placement.scaled}".rstrip())


def _together(job: JobSnapshot, agents: Iterable[AgentSnapshot], shared: SharedDirs) -> str:
    """A clause that names agents that could hold the gang only together, if they were empty, and why it has no parts
    there; "" without any."""
    parts = spread(asked(job.gang), Rooms((agent, room_of(agent)) for agent in agents))
    if len(parts) < 2:
        return ""
    several = [agent for agent, _ in parts]
    why = shared.problem(job.training_input) or _why_apart(several)
    return f"{listed([agent.name for agent in several])} together have room for it, but {why}"


def _why_apart(agents: Sequence[AgentSnapshot]) -> str:
    """The reason why these agents get no parts of one gang, as a clause."""
    if clusters := [agent.name for agent in agents if agent.engine]:
        return f"{listed(clusters)} only {'has' if len(clusters) == 1 else 'have'} whole gangs"
    if hidden := [agent.name for agent in agents if not agent.address]:
        return f"{listed(hidden)} {'has' if len(hidden) == 1 else 'have'} no address for others (--address)"
    return "they are not of one group (--group)"


def _spread_placement(
    job: JobSnapshot, group: Group, budget: QuotaBudget, allocations: int
) -> Placement | quotas.Usage | None:
    """The placement on the fewest agents of one group, the gang's use where the quota forbids it, or None where there
    is no room, or others could be delayed."""
    shares, usage = asked(job.gang), group.candidates[0].usage
    counted, devices = budget.amounts(usage), usage.get(quotas.GPUS, 0) > 0
    if not (budget.reservations.fits(counted) and budget.reservations.can_backfill(counted, devices)):
        return usage
    spreads = [_spread_on(shares, members.free(allocations), devices) for members in group.members]
    parts = min(filter(None, spreads), key=len, default=())
    if not parts:
        return None
    where = [f"{node.agent.name} ({_tasks(part)})" for node, part in parts]
    return Placement(
        job.key,
        tuple(Part(node.agent.agent_id, node.assign(part)) for node, part in parts),
        spread=f"Its replicas run on {listed(where)}.",
    )


def _spread_on(shares: Sequence[ResourceShare], rooms: Rooms[Node], devices: bool) -> Spread[Node]:
    """The parts on these nodes, of which none delays another job."""
    while parts := spread(shares, rooms):
        delaying = [node for node, part in parts if not node.reservations.can_backfill(node.amounts(part), devices)]
        if not delaying:
            return parts
        rooms = Rooms((node, room) for room, nodes in rooms.agents for node in nodes if node not in delaying)
    return ()


def _spread_reason(job: JobSnapshot, group: Group, allocations: int, apart: str) -> str:
    """The free resources on the agents that could hold it together. `apart`: a clause about those that others do not
    reach."""
    nodes = list(dict.fromkeys(node for members in group.members for node in members.nodes))
    needed = f"needs {needs(job.gang)} on several agents; {listed([node.agent.name for node in nodes])} have"
    about = f"; {apart}" if apart else ""
    if any(spread(asked(job.gang), members.free(allocations)) for members in group.members):
        return f"{needed} room for it, reserved for jobs ahead{about}"
    free = Rooms((node, node.room) for node in nodes).total
    text = describe(free.vcpus, free.memory_bytes, dict(free.gpus))
    return f"{needed} {text} free, and not enough for each replica{about}"


def _tasks(part: Sequence[ResourceShare]) -> str:
    """`master-replica-0 to worker-replica-2`"""
    return part[0].task if len(part) == 1 else f"{part[0].task} to {part[-1].task}, {len(part)} in all"


def _placement(job: JobSnapshot, candidate: Candidate, budget: QuotaBudget) -> Placement | quotas.Usage | None:
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
    part = Part(node.agent.agent_id, assignments)
    scaled = scaling(job.gang, candidate.shares, node.agent)
    return Placement(job.key, (part,), scaled, without_gpus=without_gpus(job.gang, assignments, node.agent))


def _affordable(
    group: Group, budget: QuotaBudget, roomy: Sequence[Candidate]
) -> tuple[Sequence[Candidate], Sequence[Candidate]]:
    """All candidates that the quota allows, and those of them with room."""
    if not budget.limits:
        return group.candidates, roomy
    allowed = {id(usage) for usage in group.usages if budget.reservations.fits(budget.amounts(usage))}
    if len(allowed) == len(group.usages):
        return group.candidates, roomy
    affordable = [candidate for candidate in group.candidates if id(candidate.usage) in allowed]
    return affordable, [candidate for candidate in roomy if id(candidate.usage) in allowed]


def _enqueue(group: Group, budget: QuotaBudget, kind: WaitingKind) -> None:
    """Queue the job: reserve what it waits for, and let the jobs behind it expect the rest."""
    if kind == "room":
        group.reserved += 1
    else:
        group.expected += 1
    if not budget.limits:
        return
    quota = budget.reservations
    unclear = budget.names_types and any(candidate.any_devices for candidate in group.candidates)
    for counted in {budget.amounts(usage) for usage in group.usages}:
        (quota.reserve if kind in ("room", "quota") else quota.expect)(counted, unclear)


def _room_reason(job: JobSnapshot, candidates: Sequence[Candidate], roomy: Sequence[Candidate]) -> str:
    """Resources that are missing on the agent with the most free resources."""
    if roomy:
        agent = roomy[0].node.agent
        needed = needs_on(job.gang, roomy[0].shares, agent)
        return f"needs {needed}; agent {agent.name} has room for it, reserved for jobs ahead"
    candidate = max(candidates, key=lambda candidate: candidate.node.free[:2])
    node = candidate.node
    agent, capacity = node.agent, node.agent.capacity
    if agent.in_flight:
        return full_queue(agent)
    cpus, memory = capacity.vcpus, capacity.memory_bytes
    needed = needs_on(job.gang, candidate.shares, agent)
    reason = f"needs {needed}; agent {agent.name} has {cpus} vCPU, of which {node.free_vcpus} are free"
    if memory_of(candidate.shares) > node.free_memory:
        reason += f", and {memory / GIGABYTE:.1f} GB, of which {node.free_memory / GIGABYTE:.1f} are free"
    devices = capacity.accelerators.total()
    if devices and any(request.resources.accelerator_count for request in job.gang):
        reason += f", and {devices} GPUs, of which {sum(node.free_devices.values())} are free"
    if not node.has_nodes(asked(job.gang)):
        reason += ", but not with room for each replica on a node"
    return reason


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


def _missing_tpus(gang: Iterable[ReplicaRequest], agents: Iterable[AgentSnapshot]) -> str:
    """The TPUs of the gang if no agent has as many: `8 x TPU_V3`; else ""."""
    counts = Counter[str]()
    for request in gang:
        if is_tpu(request.resources.accelerator_type):
            counts[request.resources.accelerator_type.upper()] += request.resources.accelerator_count
    if not counts or any(counts <= agent.capacity.accelerators for agent in agents):
        return ""
    return " and ".join(f"{count} x {kind}" for kind, count in counts.items())


def _missing_mounts(needs: Needs, agents: Sequence[AgentSnapshot]) -> str:
    """A clause about the mounts of a job that none of these agents can give it."""
    for name in sorted(needs.mounts):
        offers = [offer for agent in agents for offer in agent.mounts if offer.name == name]
        if not offers:
            return f"no agent has the mount {name} (`--mounts` of the agent)"
        if not any(offer.serves(needs.project) for offer in offers):
            return f"the mount {name} is not for the project {needs.project} (`projects` in the agent's file of mounts)"
    each = "; ".join(f"{agent.name} {agent.lacks_mount(needs)}" for agent in agents)
    return f"no agent has all of its mounts: {each}"


def _no_candidate(
    job: JobSnapshot, cluster: Cluster, silent: Sequence[Candidate], shared: SharedDirs
) -> tuple[WaitingKind, str]:
    """The kind of the waiting and its reason, where no agent takes the job now."""
    if not cluster.nodes:
        return "no-agent", "no agent has connected to this server yet"
    compatible = cluster.compatible(job.needs)
    if not compatible and (others := cluster.compatible(Needs(job.needs_images))):
        return "no-mount", _missing_mounts(job.needs, [node.agent for node in others])
    if not compatible and not job.needs_images:
        reasons = "; ".join(f"{node.agent.name}: {node.agent.waits_for(False)}" for node in cluster.nodes)
        return "never", f"can never start on the agents here: it is a package job ({reasons})"
    if not compatible:
        names = ", ".join(node.agent.name for node in cluster.nodes)
        reason = f"it brings a container image, and {names} cannot run images"
        return "never", f"can never start on the agents here: {reason}"
    closed = [candidate.node.agent for candidate in silent]
    if away := [agent for agent in closed if agent.accepts_work]:
        problems = "; ".join(f"on agent {agent.name} {agent.waits_for(job.needs_images)}" for agent in away)
        engine = "an engine that answers" if all(agent.engine for agent in away) else "a container engine"
        return "no-engine", f"needs {engine}: {problems}"
    if full := [agent for agent in closed if agent.alive and not agent.draining and agent.no_room]:
        reason = "; ".join(f"on agent {agent.name} {agent.no_room}" for agent in full)
        return "no-disk", f"needs room on a disk: {reason}"
    if silent_ones := [agent.name for agent in closed if not agent.draining]:
        return "no-agent", f"waits for agent {', '.join(silent_ones)}, which is silent at the moment"
    if closed:
        names = ", ".join(agent.name for agent in closed if not agent.drain_reason)
        parts = [f"agent {names}, which an operator lets start nothing new"] if names else []
        parts += [
            f"agent {agent.name}, which is drained ({agent.drain_reason})" for agent in closed if agent.drain_reason
        ]
        return "no-agent", f"waits for {', and '.join(parts)}"
    if missing := _missing_tpus(job.gang, [node.agent for node in compatible]):
        return "never", f"needs an agent with {missing} (`--tpus` of the agent), and there is none"
    largest = max((node.agent for node in compatible), key=lambda a: (a.capacity.vcpus, a.capacity.memory_bytes))
    several = _together(job, [node.agent for node in compatible], shared)
    which = "largest agent with its mounts" if job.needs.mounts else "largest agent"
    changing = any(node.agent.engine for node in compatible)  # with its nodes, and other people's pods there
    return (
        "never",
        f"{'has no room on' if changing else 'can never start on'} the agents here: needs {needs(job.gang)}; "
        f"the {which}, {largest.name}, has {has(largest.capacity)}{f'; {several}' if several else ''}",
    )
