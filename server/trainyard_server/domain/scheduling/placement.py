"""Agents and quotas while a plan is made: what is free, who waits for it, and what is given away. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainyard_protocol.machines import ReplicaRequest
from trainyard_server.domain.scheduling import quotas
from trainyard_server.domain.scheduling.backfill import Amounts, Ledger
from trainyard_server.domain.scheduling.resources import (
    Agent,
    Assignment,
    Gang,
    Share,
    asked,
    assign,
    by_type,
    cpus_of,
    fits_empty,
    gpus_of,
    memory_of,
    scaled,
)


class Host:
    """An agent. Its ledger counts CPUs, bytes of memory, devices, and devices of each type that it has."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        capacity = agent.capacity
        there = by_type(capacity.gpus)
        self.types = sorted(there)
        self.kind = (len(capacity.cpus), capacity.memory_bytes, *sorted(there.items()))
        used_cpus = frozenset(cpu for gang in agent.gangs for cpu in gang.cpus)
        used_gpus = frozenset(gpu for gang in agent.gangs for gpu in gang.gpus)
        self.free_cpus = [cpu for cpu in sorted(capacity.cpus) if cpu not in used_cpus]
        self.free_gpus = [gpu for gpu in capacity.gpus if gpu.id not in used_gpus]
        self.ledger = Ledger(
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
        return self.ledger.free[1]

    def amounts(self, shares: Sequence[Share]) -> Amounts:
        """Devices of any type count as no type's."""
        gpus = gpus_of(shares)
        return (
            cpus_of(shares, self.agent.capacity),
            memory_of(shares),
            gpus.total(),
            *(gpus[kind] for kind in self.types),
        )

    def give(self, shares: Sequence[Share]) -> tuple[Assignment, ...]:
        """What the gang would get now. It must fit."""
        return assign(shares, self.free_cpus, self.free_gpus)

    def as_given(self, assignments: Iterable[Assignment]) -> Amounts:
        return self._held(_gang(assignments))

    def hold(self, assignments: Sequence[Assignment]) -> None:
        gang = _gang(assignments)
        self.ledger.hold(self._held(gang))
        self.free_cpus = [cpu for cpu in self.free_cpus if cpu not in gang.cpus]
        self.free_gpus = [gpu for gpu in self.free_gpus if gpu.id not in gang.gpus]

    def _held(self, gang: Gang) -> Amounts:
        capacity = self.agent.capacity
        gpus = by_type(gpu for gpu in capacity.gpus if gpu.id in gang.gpus)
        cpus = len(gang.cpus.intersection(capacity.cpus))
        return (cpus, gang.memory_bytes, gpus.total(), *(gpus[kind] for kind in self.types))


@dataclass(frozen=True, slots=True)
class Home:
    """An agent that could hold a gang if it were empty, and what each replica would get there."""

    host: Host
    shares: tuple[Share, ...]
    amounts: Amounts
    any_devices: bool
    usage: quotas.Usage


class Allowance:
    """What a project may use at the same time. Its ledger counts what is limited."""

    def __init__(self, limits: quotas.Usage, used: Iterable[quotas.Usage]) -> None:
        self.limits = limits
        self.names_types = not limits.keys() <= {quotas.JOBS, quotas.VCPUS, quotas.GPUS}
        self.ledger = Ledger(tuple(limits.values()), map(self.amounts, used))

    def amounts(self, usage: quotas.Usage) -> Amounts:
        return tuple(usage.get(name, 0) for name in self.limits)

    def used(self, name: str) -> int:
        place = list(self.limits).index(name)
        return self.ledger.capacity[place] - self.ledger.free[place]


class Yard:
    """Everything that can be given away, in the order in which it is: machines with fewer devices first, then
    those with fewer CPUs, so that what needs a large one finds it. That order does not depend on what runs, or
    else a small job could delay a large one by what it makes others choose."""

    def __init__(self, agents: Iterable[Agent], limits: quotas.Quotas) -> None:
        self.hosts = sorted(map(Host, agents), key=_size)
        self._limits = limits
        self._homes: dict[tuple[tuple[ReplicaRequest, ...], bool, bool], tuple[Home, ...]] = {}
        self._allowances: dict[str, Allowance] = {}

    def homes(self, gang: tuple[ReplicaRequest, ...], images: bool, alive: bool = True) -> tuple[Home, ...]:
        """The agents that could hold the gang if they were empty: as it asks if any can, else scaled down.
        Those that are alive, or those that are silent."""
        key = (gang, images, alive)
        if key not in self._homes:
            hosts = [host for host in self.suited(images) if host.agent.alive is alive]
            wanted = asked(gang)
            homes = _homes(hosts, lambda _: wanted)
            if not homes:
                fit = [host for host in hosts if host.agent.mode == "fit"]
                homes = _homes(fit, lambda host: scaled(wanted, host.agent.capacity))
            self._homes[key] = tuple(homes)
        return self._homes[key]

    def suited(self, images: bool) -> list[Host]:
        return [host for host in self.hosts if host.agent.runs_images or not images]

    def allowance(self, project: str) -> Allowance:
        """What the project may use, and what its runs use now, wherever they are."""
        if project not in self._allowances:
            used = [
                quotas.used_by(gang, host.agent.capacity)
                for host in self.hosts
                for gang in host.agent.gangs
                if gang.project == project and not gang.over
            ]
            self._allowances[project] = Allowance(self._limits.of(project), used)
        return self._allowances[project]


def _homes(hosts: Iterable[Host], shares_on: Callable[[Host], tuple[Share, ...]]) -> list[Home]:
    """Those of the hosts that could hold what the gang would get there. Equal machines are looked at once."""
    known: dict[tuple[object, ...], tuple[tuple[Share, ...], Amounts, bool, quotas.Usage] | None] = {}
    homes = []
    for host in hosts:
        if host.kind not in known:
            shares, capacity = shares_on(host), host.agent.capacity
            any_devices = any(share.gpu_type is None and share.gpus for share in shares)
            usage = quotas.wanted_by(shares, capacity)
            fits = fits_empty(shares, capacity)
            known[host.kind] = (shares, host.amounts(shares), any_devices, usage) if fits else None
        if (found := known[host.kind]) is not None:
            homes.append(Home(host, *found))
    return homes


def _size(host: Host) -> tuple[int, int, str, str]:
    agent = host.agent
    return (len(agent.capacity.gpus), len(agent.capacity.cpus), agent.name, agent.agent_id)


def _gang(assignments: Iterable[Assignment]) -> Gang:
    given = list(assignments)
    return Gang(
        0,
        cpus=frozenset(cpu for one in given for cpu in one.cpus),
        gpus=frozenset(gpu for one in given for gpu in one.gpus),
        memory_bytes=sum(one.memory_bytes for one in given),
    )
