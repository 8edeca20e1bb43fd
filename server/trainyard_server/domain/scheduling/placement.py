"""State of a plan while it is made: nodes and quota budgets with their reservations. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainyard_protocol.machines import ReplicaRequest
from trainyard_server.domain.scheduling import quotas
from trainyard_server.domain.scheduling.backfill import Amounts, Reservations
from trainyard_server.domain.scheduling.resources import (
    AgentSnapshot,
    Assignment,
    Gang,
    ResourceShare,
    asked,
    assign_resources,
    by_type,
    cpus_of,
    fits_empty,
    gpus_of,
    memory_of,
    scaled,
)


class Node:
    """An agent. Its reservations count CPUs, bytes of memory, devices, and devices of each of its types."""

    def __init__(self, agent: AgentSnapshot) -> None:
        self.agent = agent
        capacity = agent.capacity
        there = by_type(capacity.gpus)
        self.types = sorted(there)
        self.kind = (len(capacity.cpus), capacity.memory_bytes, *sorted(there.items()))
        used_cpus = frozenset(cpu for gang in agent.gangs for cpu in gang.cpus)
        used_gpus = frozenset(gpu for gang in agent.gangs for gpu in gang.gpus)
        self.free_cpus = [cpu for cpu in sorted(capacity.cpus) if cpu not in used_cpus]
        self.free_gpus = [gpu for gpu in capacity.gpus if gpu.id not in used_gpus]
        self.reservations = Reservations(
            (
                len(capacity.cpus),
                capacity.memory_bytes,
                there.total(),
                *(there[kind] for kind in self.types),
            ),
            map(self._held, agent.gangs),
        )

    @property
    def free_memory(self) -> int:
        return self.reservations.free[1]

    def amounts(self, shares: Sequence[ResourceShare]) -> Amounts:
        """Amounts of the shares. Devices of any type count for no single type."""
        gpus = gpus_of(shares)
        return (
            cpus_of(shares, self.agent.capacity),
            memory_of(shares),
            gpus.total(),
            *(gpus[kind] for kind in self.types),
        )

    def assign(self, shares: Sequence[ResourceShare]) -> tuple[Assignment, ...]:
        """Assign free CPUs and devices to the gang. It must fit."""
        return assign_resources(shares, self.free_cpus, self.free_gpus)

    def amounts_of(self, assignments: Iterable[Assignment]) -> Amounts:
        return self._held(_gang(assignments))

    def allocate(self, assignments: Sequence[Assignment]) -> None:
        gang = _gang(assignments)
        self.reservations.allocate(self._held(gang))
        self.free_cpus = [cpu for cpu in self.free_cpus if cpu not in gang.cpus]
        self.free_gpus = [gpu for gpu in self.free_gpus if gpu.id not in gang.gpus]

    def _held(self, gang: Gang) -> Amounts:
        capacity = self.agent.capacity
        gpus = by_type(gpu for gpu in capacity.gpus if gpu.id in gang.gpus)
        cpus = len(gang.cpus.intersection(capacity.cpus))
        return (cpus, gang.memory_bytes, gpus.total(), *(gpus[kind] for kind in self.types))


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that could hold a gang if nothing else ran there, and the share of each replica."""

    node: Node
    shares: tuple[ResourceShare, ...]
    amounts: Amounts
    any_devices: bool
    usage: quotas.Usage


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
        self._candidates: dict[tuple[tuple[ReplicaRequest, ...], bool, bool], tuple[Candidate, ...]] = {}
        self._budgets: dict[str, QuotaBudget] = {}

    def candidates(
        self, gang: tuple[ReplicaRequest, ...], images: bool, alive: bool = True
    ) -> tuple[Candidate, ...]:
        """The agents that could hold the gang if they were empty: as requested if any can, else scaled down.

        Only agents that start such jobs now, or with `alive=False` only those that are silent or whose container engine
        is away.
        """
        key = (gang, images, alive)
        if key not in self._candidates:
            nodes = [
                node
                for node in self.compatible(images)
                if (node.agent.alive and node.agent.starts(images)) is alive
            ]
            requested = asked(gang)
            candidates = _candidates(nodes, lambda _: requested)
            if not candidates:
                fit = [node for node in nodes if node.agent.mode == "fit"]
                candidates = _candidates(fit, lambda node: scaled(requested, node.agent.capacity))
            self._candidates[key] = tuple(candidates)
        return self._candidates[key]

    def compatible(self, images: bool) -> list[Node]:
        """The agents that start such jobs, now or when their container engine answers again."""
        return [node for node in self.nodes if node.agent.starts(images) or node.agent.engine_problem]

    def budget(self, project: str) -> QuotaBudget:
        """The quota of the project with the use of its runs on all agents."""
        if project not in self._budgets:
            used = [
                quotas.used_by(gang, node.agent.capacity)
                for node in self.nodes
                for gang in node.agent.gangs
                if gang.project == project and not gang.ended
            ]
            self._budgets[project] = QuotaBudget(self._limits.of(project), used)
        return self._budgets[project]


def _candidates(
    nodes: Iterable[Node], shares_on: Callable[[Node], tuple[ResourceShare, ...]]
) -> list[Candidate]:
    """The nodes that could hold the gang's shares. Equal machines are computed once."""
    known: dict[tuple[object, ...], tuple[tuple[ResourceShare, ...], Amounts, bool, quotas.Usage] | None] = {}
    candidates = []
    for node in nodes:
        if node.kind not in known:
            shares, capacity = shares_on(node), node.agent.capacity
            any_devices = any(share.gpu_type is None and share.gpus for share in shares)
            usage = quotas.usage_of(shares, capacity)
            fits = fits_empty(shares, capacity)
            known[node.kind] = (shares, node.amounts(shares), any_devices, usage) if fits else None
        if (fit := known[node.kind]) is not None:
            candidates.append(Candidate(node, *fit))
    return candidates


def _size(node: Node) -> tuple[int, int, str, str]:
    agent = node.agent
    return (len(agent.capacity.gpus), len(agent.capacity.cpus), agent.name, agent.agent_id)


def _gang(assignments: Iterable[Assignment]) -> Gang:
    given = list(assignments)
    return Gang(
        0,
        cpus=frozenset(cpu for one in given for cpu in one.cpus),
        gpus=frozenset(gpu for one in given for gpu in one.gpus),
        memory_bytes=sum(one.memory_bytes for one in given),
    )
