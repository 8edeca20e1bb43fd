"""Who starts where. Pure: (queued jobs, agents, now) -> placements, and for the rest why they wait.

Jobs are taken by priority, then age. A gang is placed on one agent whole or not at all. The first job that
must wait for room holds back everyone behind it; it is passed only when it can never start here, or rests
before a new run. On an agent in `fit` mode a gang larger than the whole machine is scaled down to it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.machines import GIGABYTE, ReplicaRequest
from trainyard_protocol.sync import Capacity, Gpu

WaitingKind = Literal["room", "never", "no-agent", "rest"]


@dataclass(frozen=True, slots=True)
class Queued:
    """A job that waits for a run. `gang` is never empty."""

    key: int
    priority: int
    created_at: datetime
    gang: tuple[ReplicaRequest, ...]
    needs_images: bool = False
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, and what runs there already holds. `alive`: it may be given something now."""

    agent_id: str
    name: str
    capacity: Capacity
    mode: Literal["strict", "fit"]
    runs_images: bool
    alive: bool = True
    used_cpus: frozenset[int] = frozenset()
    used_gpus: frozenset[str] = frozenset()
    used_memory: int = 0

    @property
    def free_cpus(self) -> list[int]:
        return [cpu for cpu in sorted(self.capacity.cpus) if cpu not in self.used_cpus]

    @property
    def free_gpus(self) -> list[Gpu]:
        return [gpu for gpu in self.capacity.gpus if gpu.id not in self.used_gpus]

    @property
    def free_memory(self) -> int:
        return self.capacity.memory_bytes - self.used_memory


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one replica gets: CPU numbers, device ids, bytes."""

    task: str
    machine_type: str
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    memory_bytes: int


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
    placements: tuple[Placement, ...]
    waiting: Mapping[int, Waiting]


@dataclass(frozen=True, slots=True)
class _Share:
    """What one replica is to get. `gpu_type` None: devices of any type will do. With `shares_cpus` the
    replicas of the gang take turns over all CPUs of the machine."""

    task: str
    machine_type: str
    vcpus: int
    memory_bytes: int
    gpu_type: str | None
    gpus: int
    shares_cpus: bool = False


def plan(queued: Iterable[Queued], agents: Sequence[Agent], now: datetime) -> Plan:
    """Places what can start now, in order, and says of everyone else what it waits for."""
    state = {agent.agent_id: agent for agent in sorted(agents, key=lambda a: a.name)}
    placements: list[Placement] = []
    waiting: dict[int, Waiting] = {}
    blocked = False
    for job in sorted(queued, key=lambda q: (-q.priority, q.created_at, q.key)):
        position = len(waiting) + 1
        if job.not_before is not None and now < job.not_before:
            waiting[job.key] = Waiting("rest", f"its next run starts at {rfc3339(job.not_before)}", position)
            continue
        suited = [agent for agent in state.values() if agent.runs_images or not job.needs_images]
        homes = _homes(job, [agent for agent in suited if agent.alive])
        if not homes:
            waiting[job.key] = _homeless(job, list(state.values()), suited, position)
            continue
        placement = None if blocked else _place(job, homes)
        if placement is None:
            blocked = True
            reason = _room(job, [agent for agent, _ in homes], position - 1)
            waiting[job.key] = Waiting("room", reason, position)
            continue
        placements.append(placement)
        state[placement.agent_id] = _occupied(state[placement.agent_id], placement)
    return Plan(tuple(placements), waiting)


def describe(vcpus: int, memory_bytes: int, gpus: Mapping[str, int]) -> str:
    """`4 vCPU, 8.0 GB and 1 x NVIDIA_TESLA_T4`"""
    parts = [f"{vcpus} vCPU", f"{memory_bytes / GIGABYTE:.1f} GB"]
    parts += [f"{count} x {kind}" for kind, count in sorted(gpus.items()) if count]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _homes(job: Queued, agents: Sequence[Agent]) -> list[tuple[Agent, list[_Share]]]:
    """The agents that could hold the gang if they were empty: as it asks if any can, else scaled down."""
    asked = [_asked(request) for request in job.gang]
    whole = [(agent, asked) for agent in agents if _fits(asked, _emptied(agent))]
    if whole:
        return whole
    scaled = [(agent, _scaled(asked, agent.capacity)) for agent in agents if agent.mode == "fit"]
    return [(agent, shares) for agent, shares in scaled if _fits(shares, _emptied(agent))]


def _place(job: Queued, homes: Sequence[tuple[Agent, list[_Share]]]) -> Placement | None:
    """On the agent that is left with the least, so that large gangs find room elsewhere."""
    fitting = [(agent, shares) for agent, shares in homes if _fits(shares, agent)]
    if not fitting:
        return None
    agent, shares = min(fitting, key=lambda home: (len(home[0].free_cpus), home[0].name, home[0].agent_id))
    scaled = _scaling(job.gang, shares, agent)
    return Placement(job.key, agent.agent_id, _assign(shares, agent), scaled)


def _asked(request: ReplicaRequest) -> _Share:
    resources = request.resources
    return _Share(
        request.task.name,
        request.machine_type,
        resources.vcpus,
        resources.memory_bytes,
        resources.accelerator_type.upper(),
        resources.accelerator_count,
    )


def _fits(shares: Sequence[_Share], agent: Agent) -> bool:
    cpus = len(agent.free_cpus)
    if any(share.shares_cpus for share in shares):
        enough_cpus = 0 < cpus == len(agent.capacity.cpus)
    else:
        enough_cpus = sum(share.vcpus for share in shares) <= cpus
    if not enough_cpus or sum(share.memory_bytes for share in shares) > agent.free_memory:
        return False
    free = _by_type(agent.free_gpus)
    if any(count > free[kind] for kind, count in _gpus(shares).items() if kind is not None):
        return False
    return sum(share.gpus for share in shares) <= free.total()


def _scaled(asked: Sequence[_Share], capacity: Capacity) -> list[_Share]:
    """The gang cut down to the whole machine, in every dimension in which it is larger, and only there."""
    shares = list(asked)
    cpus = len(capacity.cpus)
    if len(shares) > cpus:
        shares = [replace(share, vcpus=1, shares_cpus=True) for share in shares]
    elif sum(share.vcpus for share in shares) > cpus:
        given = _proportional([share.vcpus for share in shares], cpus, least=1)
        shares = [replace(share, vcpus=n) for share, n in zip(shares, given, strict=True)]
    memory = sum(share.memory_bytes for share in shares)
    if memory > capacity.memory_bytes:
        shares = [
            replace(share, memory_bytes=share.memory_bytes * capacity.memory_bytes // memory)
            for share in shares
        ]
    there = _by_type(capacity.gpus)
    if any(count > there[kind or ""] for kind, count in _gpus(shares).items()):
        given = _proportional([share.gpus for share in shares], there.total(), least=0)
        shares = [replace(share, gpu_type=None, gpus=n) for share, n in zip(shares, given, strict=True)]
    return shares


def _proportional(wanted: Sequence[int], total: int, least: int) -> list[int]:
    """Divides `total` units by what is wanted (the method of D'Hondt), nobody above it or below `least`."""
    given = [least] * len(wanted)
    for _ in range(total - sum(given)):
        hungry = [i for i, n in enumerate(given) if n < wanted[i]]
        if not hungry:
            break
        given[max(hungry, key=lambda i: (wanted[i] / (given[i] + 1), -i))] += 1
    return given


def _assign(shares: Sequence[_Share], agent: Agent) -> tuple[Assignment, ...]:
    cpus, gpus = agent.free_cpus, agent.free_gpus
    assignments = []
    for number, share in enumerate(shares):
        if share.shares_cpus:
            mine = [cpus[number % len(cpus)]]
        else:
            mine, cpus = cpus[: share.vcpus], cpus[share.vcpus :]
        fitting = [gpu for gpu in gpus if share.gpu_type in (None, gpu.type.upper())][: share.gpus]
        gpus = [gpu for gpu in gpus if gpu not in fitting]
        devices = tuple(gpu.id for gpu in fitting)
        assignments.append(
            Assignment(share.task, share.machine_type, tuple(mine), devices, share.memory_bytes)
        )
    return tuple(assignments)


def _occupied(agent: Agent, placement: Placement) -> Agent:
    return replace(
        agent,
        used_cpus=agent.used_cpus.union(*(a.cpus for a in placement.assignments)),
        used_gpus=agent.used_gpus.union(*(a.gpus for a in placement.assignments)),
        used_memory=agent.used_memory + sum(a.memory_bytes for a in placement.assignments),
    )


def _emptied(agent: Agent) -> Agent:
    return replace(agent, used_cpus=frozenset(), used_gpus=frozenset(), used_memory=0)


def _by_type(gpus: Iterable[Gpu]) -> Counter[str]:
    return Counter(gpu.type.upper() for gpu in gpus)


def _gpus(shares: Iterable[_Share]) -> Counter[str | None]:
    wanted: Counter[str | None] = Counter()
    for share in shares:
        if share.gpus:
            wanted[share.gpu_type] += share.gpus
    return wanted


def _needs(job: Queued) -> str:
    shares = [_asked(request) for request in job.gang]
    gpus = {kind or "": count for kind, count in _gpus(shares).items()}
    return describe(sum(s.vcpus for s in shares), sum(s.memory_bytes for s in shares), gpus)


def _has(agent: Agent) -> str:
    return describe(len(agent.capacity.cpus), agent.capacity.memory_bytes, _by_type(agent.capacity.gpus))


def _room(job: Queued, homes: Sequence[Agent], ahead: int) -> str:
    """What is missing on the agent that comes nearest, and who is first."""
    agent = max(homes, key=lambda a: (len(a.free_cpus), a.free_memory))
    cpus, memory = len(agent.capacity.cpus), agent.capacity.memory_bytes
    wanted_memory = sum(request.resources.memory_bytes for request in job.gang)
    reason = (
        f"needs {_needs(job)}; agent {agent.name} has {cpus} vCPU, of which {len(agent.free_cpus)} are free"
    )
    if min(wanted_memory, memory) > agent.free_memory:
        reason += f", and {memory / GIGABYTE:.1f} GB, of which {agent.free_memory / GIGABYTE:.1f} are free"
    if agent.capacity.gpus and any(request.resources.accelerator_count for request in job.gang):
        reason += f", and {len(agent.capacity.gpus)} GPUs, of which {len(agent.free_gpus)} are free"
    if ahead:
        reason += f"; {ahead} {'job' if ahead == 1 else 'jobs'} ahead"
    return reason


def _homeless(job: Queued, agents: Sequence[Agent], suited: Sequence[Agent], position: int) -> Waiting:
    if not agents:
        return Waiting("no-agent", "no agent has connected to this server yet", position)
    if not suited:
        return Waiting(
            "never",
            "can never start on the agents here: it brings a container image, and "
            f"{', '.join(agent.name for agent in agents)} cannot run images",
            position,
        )
    silent = [agent for agent, _ in _homes(job, suited) if not agent.alive]
    if silent:
        names = ", ".join(agent.name for agent in silent)
        return Waiting("no-agent", f"waits for agent {names}, which is silent at the moment", position)
    largest = max(suited, key=lambda a: (len(a.capacity.cpus), a.capacity.memory_bytes))
    return Waiting(
        "never",
        f"can never start on the agents here: needs {_needs(job)}; "
        f"the largest agent, {largest.name}, has {_has(largest)}",
        position,
    )


def _scaling(gang: Sequence[ReplicaRequest], shares: Sequence[_Share], agent: Agent) -> str:
    """What each replica asked for and what it gets, equal neighbours together; "" where nothing was cut."""
    groups: list[tuple[str, list[str]]] = []
    for request, given in zip(gang, shares, strict=True):
        asked = _asked(request)
        if asked == given:
            continue
        change = f"asked for {_one(asked)} and gets {_one(given)}"
        if groups and groups[-1][0] == change:
            groups[-1][1].append(asked.task)
        else:
            groups.append((change, [asked.task]))
    if not groups:
        return ""
    parts = [
        f"{names[0] if len(names) == 1 else f'{names[0]} to {names[-1]} each'} {change}"
        for change, names in groups
    ]
    return f"Scaled down to fit agent {agent.name} ({_has(agent)}): {'; '.join(parts)}."


def _one(share: _Share) -> str:
    gpus = {share.gpu_type or "GPU of another type": share.gpus}
    text = describe(share.vcpus, share.memory_bytes, gpus)
    return f"{text}, sharing its vCPU" if share.shares_cpus else text
