"""State of a plan while it is made: nodes and quota budgets with their reservations. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from trainyard_protocol.job.machines import ReplicaRequest
from trainyard_protocol.job.resources import Capacity
from trainyard_server.domain.scheduling import quotas
from trainyard_server.domain.scheduling.backfill import Amounts, Reservations
from trainyard_server.domain.scheduling.pools import nodes_of, packed
from trainyard_server.domain.scheduling.reaching import about_apart, by_group, meeting_sets, pairs_apart
from trainyard_server.domain.scheduling.resources import (
    AgentSnapshot,
    Assignment,
    Gang,
    Needs,
    ResourceShare,
    asked,
    assign_amounts,
    assign_resources,
    cpus_of,
    fits_empty,
    gpus_of,
    memory_of,
    scaled,
)
from trainyard_server.domain.scheduling.spreading import Room, Rooms, spread


class Node:
    """An agent. Its reservations count CPUs, bytes of memory, devices, and devices of each of its types; where its
    engine has a queue of its own, places of runs in it, in place of the CPUs, and nothing else."""

    def __init__(self, agent: AgentSnapshot) -> None:
        self.agent = agent
        capacity = agent.capacity
        there = capacity.accelerators
        self.types = sorted(there)
        self.kind = (
            capacity.vcpus,
            capacity.memory_bytes,
            *sorted(there.items()),
            capacity.pools,
            bool(agent.in_flight),
        )
        self._nodes = nodes_of(capacity)
        for gang in agent.gangs:  # the engine may have placed one where this would not
            self._nodes = packed(self._nodes, gang.parts) or self._nodes
        used_cpus = frozenset(cpu for gang in agent.gangs for cpu in gang.cpus)
        used_gpus = frozenset(gpu for gang in agent.gangs for gpu in gang.gpus)
        self.free_cpus = [cpu for cpu in sorted(capacity.cpus) if cpu not in used_cpus]
        self.free_gpus = [gpu for gpu in capacity.gpus if gpu.id not in used_gpus]
        amounts: Amounts = (capacity.vcpus, capacity.memory_bytes, there.total(), *(there[kind] for kind in self.types))
        self._room = Reservations(amounts, map(self._held, agent.gangs))
        self._reservations = self._room
        self._ahead: list[_GangsAhead] = []
        if agent.in_flight:
            self._reservations = Reservations(
                self._places(agent.in_flight), (self._places(int(gang.waits)) for gang in agent.gangs)
            )

    @property
    def reservations(self) -> Reservations:
        """The nodes with every gang that is queued so far. Most nodes are full, and are never asked for them."""
        for gangs in self._ahead:
            gangs.add_to(self._reservations)
        return self._reservations

    def follow(self, group: "Group", candidate: "Candidate") -> None:
        """Count the gangs of the group that will be queued."""
        self._ahead.append(_GangsAhead(group, candidate))

    @property
    def free(self) -> Amounts:
        return self._reservations.free

    @property
    def capacity(self) -> Amounts:
        return self._reservations.capacity

    @property
    def room(self) -> Room:
        """The free resources."""
        return Room(self.free_vcpus, max(0, self.free_memory), tuple(self.free_devices.items()))

    @property
    def free_memory(self) -> int:
        return self._room.free[1]

    @property
    def free_vcpus(self) -> int:
        return max(0, self._room.free[0])

    @property
    def free_devices(self) -> dict[str, int]:
        """Number of free devices by type."""
        free = (max(0, count) for count in self._room.free[3:])
        return dict(zip(self.types, free, strict=True))

    def has_room(self, candidate: "Candidate") -> bool:
        """Whether the gang fits beside what runs there now."""
        return self._reservations.fits(candidate.amounts) and self.has_nodes(candidate.shares)

    def has_nodes(self, shares: Iterable[ResourceShare]) -> bool:
        """Whether each replica fits on a node now; a machine has no nodes to choose from."""
        pools = self.agent.capacity.pools
        return (
            not pools
            or bool(self.agent.in_flight)
            or packed(self._nodes, (share.resources for share in shares)) is not None
        )

    def amounts(self, shares: Sequence[ResourceShare]) -> Amounts:
        """Amounts of the shares. Devices of any type count for no single type."""
        if self.agent.in_flight:
            return self._places(1)
        gpus = gpus_of(shares)
        return (
            cpus_of(shares, self.agent.capacity),
            memory_of(shares),
            gpus.total(),
            *(gpus[kind] for kind in self.types),
        )

    def assign(self, shares: Sequence[ResourceShare]) -> tuple[Assignment, ...]:
        """Assign free CPUs and devices to the gang, or amounts of an engine. It must fit."""
        if self.agent.capacity.pools:
            return assign_amounts(shares)
        return assign_resources(shares, self.free_cpus, self.free_gpus)

    def amounts_of(self, assignments: Iterable[Assignment]) -> Amounts:
        return self._places(1) if self.agent.in_flight else self._held(Gang.of(assignments))

    def allocate(self, assignments: Sequence[Assignment]) -> None:
        gang = Gang.of(assignments)
        self._room.allocate(self._held(gang))
        if self.agent.in_flight:
            self._reservations.allocate(self._places(1))
        self._nodes = packed(self._nodes, gang.parts) or self._nodes
        self.free_cpus = [cpu for cpu in self.free_cpus if cpu not in gang.cpus]
        self.free_gpus = [gpu for gpu in self.free_gpus if gpu.id not in gang.gpus]

    def _places(self, count: int) -> Amounts:
        """Places in the queue of its engine."""
        return (count, 0, 0, *(0 for _ in self.types))

    def _held(self, gang: Gang) -> Amounts:
        capacity = self.agent.capacity
        gpus = gang.accelerators(capacity)
        cpus = len(gang.cpus.intersection(capacity.cpus)) + sum(part.vcpus for part in gang.parts)
        return (cpus, gang.memory_bytes, gpus.total(), *(gpus[kind] for kind in self.types))


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that could hold a gang if nothing else ran there, and the share of each replica; or one that could hold
    a part of it, which has no shares before they are spread, and the most that the part may have."""

    node: Node
    shares: tuple[ResourceShare, ...]
    amounts: Amounts
    any_devices: bool
    usage: quotas.Usage


class Group:
    """Equal gangs: the agents that could hold one, and how many of them are queued so far.

    While a plan is made, free resources only shrink: what has no room now gets none. `members`: the candidates hold one
    only together, those of each of these. `is_scaled`: they hold one only scaled down.
    """

    def __init__(
        self, candidates: Iterable[Candidate], members: "Sequence[Members]" = (), *, is_scaled: bool = False
    ) -> None:
        self.candidates = tuple(candidates)
        self.members = members
        self.is_scaled = is_scaled
        self.reserved = 0
        self.expected = 0
        self._roomy: Sequence[Candidate] = self.candidates
        self._roomy_at = -1
        for candidate in self.candidates:
            candidate.node.follow(self, candidate)

    def roomy(self, allocations: int) -> Sequence[Candidate]:
        """The candidates with room now, after so many allocations of the plan; all that may have parts."""
        if allocations != self._roomy_at and not self.members:
            self._roomy = [candidate for candidate in self._roomy if candidate.node.has_room(candidate)]
            self._roomy_at = allocations
        return self._roomy

    @cached_property
    def usages(self) -> Sequence[quotas.Usage]:
        """The different usages of the candidates, in their order."""
        return list({id(candidate.usage): candidate.usage for candidate in self.candidates}.values())


class _GangsAhead:
    """The queued gangs of a group, as far as the reservations of a node have them."""

    def __init__(self, group: Group, candidate: Candidate) -> None:
        self._group = group
        self._candidate = candidate
        self._reserved = 0
        self._expected = 0

    def add_to(self, reservations: Reservations) -> None:
        """Add those that were queued since the last call."""
        amounts, any_devices = self._candidate.amounts, self._candidate.any_devices
        if fresh := self._group.reserved - self._reserved:
            self._reserved += fresh
            reservations.reserve(amounts, any_devices, fresh)
        if fresh := self._group.expected - self._expected:
            self._expected += fresh
            reservations.expect(amounts, any_devices, fresh)


class _Kind(NamedTuple):
    """The terms of the candidates for a gang: see `Cluster.group`."""

    needs: Needs
    alive: bool
    avoided: frozenset[str]
    spreads: bool


class QuotaBudget:
    """The quota of a project. Its reservations count the limited amounts."""

    def __init__(self, limits: quotas.Usage, used: Iterable[quotas.Usage]) -> None:
        self.limits = limits
        self.names_types = not limits.keys() <= {quotas.JOBS, quotas.VCPUS, quotas.GPUS}
        self.reservations = Reservations(tuple(limits.values()), map(self.amounts, used))

    def amounts(self, usage: quotas.Usage) -> Amounts:
        return tuple(usage.get(name, 0) for name in self.limits)

    def used(self, name: str) -> int:
        index = list(self.limits).index(name)
        return self.reservations.capacity[index] - self.reservations.free[index]


class Cluster:
    """All nodes, in the order in which they are filled: fewer devices first, then fewer CPUs, so that large machines
    stay free for large jobs. The order does not depend on what runs; otherwise a small job could delay a large one by
    changing where others start."""

    def __init__(self, agents: Iterable[AgentSnapshot], limits: quotas.Quotas) -> None:
        self.nodes = sorted(map(Node, agents), key=_size)
        self._limits = limits
        self._groups: dict[tuple[tuple[ReplicaRequest, ...], _Kind], Group] = {}
        self._known: dict[tuple[int, _Kind], tuple[object, Group]] = {}
        self._members_by_kind: dict[_Kind, Sequence[Sequence[Members]]] = {}
        self._budgets: dict[str, QuotaBudget] = {}

    def group(
        self,
        gang: tuple[ReplicaRequest, ...],
        needs: Needs,
        alive: bool = True,
        avoided: frozenset[str] = frozenset(),
        spreads: bool = False,
    ) -> Group:
        """The gangs that are equal to this one, and avoid the same agents. To hash a large gang takes longer than to
        find the object again. `spreads`: they may have parts on several agents."""
        kind = _Kind(needs, alive, avoided, spreads)
        cached = self._known.get((id(gang), kind))
        if cached is None:
            group = self._groups.get((gang, kind))
            if group is None:
                group = self._groups[gang, kind] = self._group(gang, kind)
            cached = self._known[id(gang), kind] = (gang, group)
        return cached[1]

    def candidates(
        self, gang: tuple[ReplicaRequest, ...], needs: Needs, alive: bool = True, spreads: bool = False
    ) -> tuple[Candidate, ...]:
        """The agents that could hold the gang if they were empty, or with `spreads` parts of it: as requested if any
        can, else scaled down, where that is least; none, if some only would if they reached each other.

        Only agents that start such jobs now, or with `alive=False` only those that are silent, draining or without room
        on their disks, or whose container engine is away.
        """
        return self.group(gang, needs, alive, spreads=spreads).candidates

    def _group(self, gang: tuple[ReplicaRequest, ...], kind: "_Kind") -> Group:
        every = self.compatible(kind.needs)
        nodes = [
            node for node in every if (node.agent.accepts_work and node.agent.starts(kind.needs.images)) is kind.alive
        ]
        requested = asked(gang)
        if candidates := _candidates(nodes, lambda _: requested):
            return Group(_without(kind.avoided, candidates))
        if kind.spreads and len(requested) > 1:
            for members in self._members(kind, every, nodes):
                holding = {some: parts for some in members if (parts := _parts(requested, some))}
                found = {part.node: part for parts in holding.values() for part in parts}
                if candidates := [found[node] for node in nodes if node in found]:
                    return Group(candidates, tuple(holding))
            if self.about_apart(kind.needs, gang):
                return Group(())  # it is not scaled down for good while machines do not reach each other
        fit = [node for node in nodes if node.agent.mode == "fit" and not node.agent.capacity.pools]
        shrunk = _candidates(fit, lambda node: scaled(requested, node.agent.capacity))
        return Group(_without(kind.avoided, _least_scaled(requested, shrunk)), is_scaled=bool(shrunk))

    def _members(self, kind: "_Kind", every: Sequence[Node], nodes: Sequence[Node]) -> Sequence[Sequence["Members"]]:
        """The agents that may have parts of a gang together: without those that are avoided, then with them."""
        if kind not in self._members_by_kind:
            open_ones = [node for node in nodes if node.agent.agent_id not in kind.avoided]
            choices = [open_ones, nodes] if kind.alive and kind.avoided else [nodes if kind.alive else every]
            self._members_by_kind[kind] = [_members_of(some) for some in choices]
        return self._members_by_kind[kind]

    def compatible(self, needs: Needs) -> list[Node]:
        """The agents that have what such jobs need, now or when their container engine answers again."""
        return [
            node
            for node in self.nodes
            if (node.agent.starts(needs.images) or node.agent.engine_problem) and not node.agent.lacks_mount(needs)
        ]

    def spreading_groups(self, needs: Needs) -> Sequence[Sequence[AgentSnapshot]]:
        """The agents that take such jobs and may have parts of a gang over several, by group."""
        return by_group(node.agent for node in self.compatible(needs) if node.agent.accepts_work)

    def about_apart(self, needs: Needs, gang: Iterable[ReplicaRequest] | None = None) -> str:
        """A clause about the agents that take such jobs and do not reach each other; "" without any. With a gang only
        of those groups that would hold it if they did."""
        groups = [some for some in self.spreading_groups(needs) if pairs_apart(some)]
        if gang is not None:
            shares = asked(gang)
            groups = [some for some in groups if spread(shares, Rooms((agent, room_of(agent)) for agent in some))]
        return "; ".join(filter(None, map(about_apart, groups)))

    def budget(self, project: str) -> QuotaBudget:
        """The quota of the project with the use of its runs on all agents."""
        if project not in self._budgets:
            limits = self._limits.of(project)
            held = self._held_by_project.get(project, ()) if limits else ()
            self._budgets[project] = QuotaBudget(limits, (quotas.used_by(*usage) for usage in held))
        return self._budgets[project]

    @cached_property
    def _held_by_project(self) -> Mapping[str, Sequence[tuple[Gang, Capacity]]]:
        """The gangs of each project that run, with the capacities of their agents."""
        held: dict[str, list[tuple[Gang, Capacity]]] = {}
        for node in self.nodes:
            for gang in node.agent.gangs:
                if not gang.ended:
                    held.setdefault(gang.project, []).append((gang, node.agent.capacity))
        return held


def _candidates(nodes: Iterable[Node], shares_on: Callable[[Node], tuple[ResourceShare, ...]]) -> list[Candidate]:
    """The nodes that could hold the gang's shares. Equal machines are computed once."""
    kinds: dict[tuple[object, ...], tuple[tuple[ResourceShare, ...], Amounts, bool, quotas.Usage] | None] = {}
    candidates = []
    for node in nodes:
        if node.kind not in kinds:
            shares, capacity = shares_on(node), node.agent.capacity
            any_devices = any(share.gpu_type is None and share.gpus for share in shares)
            usage = quotas.usage_of(shares, capacity)
            fits = fits_empty(shares, capacity)
            kinds[node.kind] = (shares, node.amounts(shares), any_devices, usage) if fits else None
        if (fit := kinds[node.kind]) is not None:
            candidates.append(Candidate(node, *fit))
    return candidates


def _without(avoided: frozenset[str], candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates that are not avoided; all, if all are."""
    return [candidate for candidate in candidates if candidate.node.agent.agent_id not in avoided] or candidates


class Members:
    """Nodes that may have parts of a gang together: agents of a group that reach each other."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.whole = Rooms((node, room_of(node.agent)) for node in nodes)
        self._free, self._free_at = self.whole, -1

    def free(self, allocations: int) -> Rooms[Node]:
        """The free resources after so many allocations of the plan."""
        if allocations != self._free_at:
            self._free, self._free_at = Rooms((node, node.room) for node in self.nodes), allocations
        return self._free


def _members_of(nodes: Iterable[Node]) -> list[Members]:
    by_agent = {node.agent.agent_id: node for node in nodes}
    groups = by_group(node.agent for node in by_agent.values())
    return [Members([by_agent[agent.agent_id] for agent in some]) for group in groups for some in meeting_sets(group)]


def _parts(requested: tuple[ResourceShare, ...], members: Members) -> list[Candidate]:
    """The nodes that could hold the gang together, if they were empty, with the most that a part of it may have there;
    none, if they could not."""
    if not spread(requested, members.whole):
        return []
    shapes = {share.resources: share for share in requested}.values()
    usage = quotas.usage_of(requested, members.nodes[0].agent.capacity)
    parts = []
    for room, nodes in members.whole.agents:
        if any(room.holds([shape]) for shape in shapes):
            most: dict[tuple[str, ...], Amounts] = {}
            for node in nodes:
                kinds = tuple(node.types)
                if kinds not in most:
                    most[kinds] = tuple(map(min, node.amounts(requested), node.capacity))
                parts.append(Candidate(node, (), most[kinds], False, usage))
    return parts


def room_of(agent: AgentSnapshot) -> Room:
    """The whole agent."""
    capacity = agent.capacity
    return Room(capacity.vcpus, capacity.memory_bytes, tuple(sorted(capacity.accelerators.items())))


def _least_scaled(requested: Sequence[ResourceShare], candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates on which the gang gets most of what it asked for."""

    def given(candidate: Candidate) -> float:
        capacity = candidate.node.agent.capacity
        amounts = (
            (sum(share.vcpus for share in requested), len(capacity.cpus)),
            (memory_of(requested), capacity.memory_bytes),
            (gpus_of(requested).total(), len(capacity.gpus)),
        )
        return math.prod(min(1.0, there / asked_for) for asked_for, there in amounts if asked_for)

    shares = [(candidate, given(candidate)) for candidate in candidates]
    most = max((share for _, share in shares), default=0.0)
    return [candidate for candidate, share in shares if share == most]


def _size(node: Node) -> tuple[int, int, str, str]:
    agent = node.agent
    capacity = agent.capacity
    return (capacity.accelerators.total(), capacity.vcpus, agent.name, agent.agent_id)
