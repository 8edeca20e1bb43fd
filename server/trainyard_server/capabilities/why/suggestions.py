"""Suggestions: the smallest changes that would start a waiting job now. Pure: each one is tested with a plan."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from trainyard_protocol.answers.why import SuggestionView
from trainyard_protocol.job.cluster import TaskType
from trainyard_protocol.job.machines import Catalog, MachineType, ReplicaRequest, Resources
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_server.domain.scheduling.placement import Cluster
from trainyard_server.domain.scheduling.quotas import Quotas, amount
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import Planner, in_order
from trainyard_server.domain.scheduling.spreading import NOTHING_SHARED, SharedDirs
from trainyard_server.domain.snapshots import JobSnapshot

_ROLES: Mapping[TaskType, str] = {
    "master": "masterType",
    "worker": "workerType",
    "ps": "parameterServerType",
    "evaluator": "evaluatorType",
}
_COUNTS: Mapping[TaskType, str] = {"worker": "workerCount", "ps": "parameterServerCount", "evaluator": "evaluatorCount"}
_MAX_PRIORITY = 1000
_MAX_TRIES = 24  # of one kind of change, the smallest first


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of the scheduler, and the catalogue of machine types."""

    queue: tuple[JobSnapshot, ...]
    agents: tuple[AgentSnapshot, ...]
    now: datetime
    limits: Quotas
    catalog: Catalog
    shared: SharedDirs = NOTHING_SHARED

    def starts(self, job: JobSnapshot) -> bool:
        """Whether the job would start now, with everything else unchanged."""
        return self.up_to(job).would_start(job)

    def up_to(self, job: JobSnapshot) -> Planner:
        """The plan before the job is added."""
        order = in_order(
            [*(waiting for waiting in self.queue if waiting.key != job.key), job], self.limits.sharing, self.now
        )
        planner = Planner(self.agents, self.now, self.limits, self.shared)
        for waiting in order[: order.index(job)]:
            planner.add(waiting)
        return planner


def suggestions(job: JobSnapshot, situation: Situation, name_of: Callable[[int], str]) -> Iterator[SuggestionView]:
    """The first change of each kind that starts the job now, the smaller ones first. `name_of` gives the id of a key.

    A submitted job cannot be changed, so one with another priority or gang is placed behind those of its priority.
    """
    yield from _priority(job, situation)
    yield from _fewer(job, situation)
    yield from _smaller(job, situation)
    yield from _quota(job, situation)
    yield from _agent(job, situation)
    yield from _end(job, situation, name_of)


def _priority(job: JobSnapshot, situation: Situation) -> Iterator[SuggestionView]:
    order = in_order(situation.queue, situation.limits.sharing, situation.now)
    ahead = sorted({waiting.priority for waiting in order[: order.index(job)]} - {_MAX_PRIORITY})
    anew = replace(job, created_at=situation.now)
    above = _first(ahead, lambda priority: situation.starts(replace(anew, priority=priority + 1)))
    if above is not None:
        yield SuggestionView(kind="priority", message=f"a priority above {above} (it has {job.priority})")


def _fewer(job: JobSnapshot, situation: Situation) -> Iterator[SuggestionView]:
    anew = replace(job, created_at=situation.now)
    planner = situation.up_to(anew)
    for role, field in _COUNTS.items():
        mine = [request for request in job.gang if request.task.type == role]
        others = [request for request in job.gang if request.task.type != role]

        def starts(dropped: int, mine: list[ReplicaRequest] = mine, others: list[ReplicaRequest] = others) -> bool:
            return planner.would_start(replace(anew, gang=(*others, *mine[: len(mine) - dropped])))

        dropped = _first(range(1, len(mine) + 1), starts)
        if dropped is not None:
            yield SuggestionView(kind="replicas", message=f"a {field} of {len(mine) - dropped} (it has {len(mine)})")
            return


def _smaller(job: JobSnapshot, situation: Situation) -> Iterator[SuggestionView]:
    """Smaller machines for one role, the workers first; then for all roles."""
    anew = replace(job, created_at=situation.now)
    planner = situation.up_to(anew)
    types = {request.task.type for request in job.gang}
    present = [role for role in ("worker", "ps", "evaluator", "master") if role in types]
    for roles in [*([role] for role in present), *([present] if len(present) > 1 else [])]:
        old = next(request for request in job.gang if request.task.type == roles[0])
        fields = " and ".join(_ROLES[role] for role in _ROLES if role in roles)
        for name, resources in _types_below(old, situation.catalog):
            gang = tuple(
                replace(request, machine_type=name, resources=resources) if request.task.type in roles else request
                for request in job.gang
            )
            if _less(gang, job.gang) and planner.would_start(replace(anew, gang=gang)):
                size = f"{resources.vcpus} vCPU, {resources.memory_bytes / GIGABYTE:g} GB"
                yield SuggestionView(
                    kind="machine-type", message=f"{fields} {name} ({size}) instead of {old.machine_type}"
                )
                return


def _quota(job: JobSnapshot, situation: Situation) -> Iterator[SuggestionView]:
    limits = situation.limits.of(job.project)
    cluster = Cluster(situation.agents, situation.limits)
    budget = cluster.budget(job.project)
    spreads = situation.shared.lets_spread(job.training_input)
    for candidate in cluster.candidates(job.gang, job.needs, spreads=spreads) if limits else ():
        needed = {name: budget.used(name) + candidate.usage.get(name, 0) for name in limits}
        raised = {name: max(limit, needed[name]) for name, limit in limits.items()}
        quotas = Quotas(situation.limits.default, {**situation.limits.projects, job.project: raised})
        if raised != limits and replace(situation, limits=quotas).starts(job):
            more = [amount(name, raised[name]) for name in limits if raised[name] > limits[name]]
            yield SuggestionView(kind="quota", message=f"a quota of {' and '.join(more)} for project {job.project}")
            return


def _agent(job: JobSnapshot, situation: Situation) -> Iterator[SuggestionView]:
    """The first agent that would start the job if what holds it back there was over, by the kind of what does."""
    for kind, back, message in _RETURNS:
        for agent in situation.agents:
            again = back(agent)
            if again is None:
                continue
            agents = tuple(again if other is agent else other for other in situation.agents)
            if replace(situation, agents=agents).starts(job):
                yield SuggestionView(kind=kind, message=message(agent))
                return


def _with_engine(agent: AgentSnapshot) -> AgentSnapshot | None:
    if not (agent.alive and agent.engine_problem):
        return None
    return replace(agent, runs_images=True, runs_packages=True, engine_problem="")


def _engine_message(agent: AgentSnapshot) -> str:
    if agent.has_no_docker:
        return f"a container engine on agent {agent.name}: start Docker there"
    if agent.engine:
        return f"an answer of the engine of agent {agent.name}"
    return f"a container engine on agent {agent.name} that starts containers: {agent.engine_problem}"


_RETURNS: Sequence[tuple[str, Callable[[AgentSnapshot], AgentSnapshot | None], Callable[[AgentSnapshot], str]]] = (
    ("engine", _with_engine, _engine_message),
    (
        "agent",
        lambda agent: replace(agent, draining=False) if agent.alive and agent.draining else None,
        lambda agent: (
            f"agent {agent.name}, which is draining"
            f"{f' ({agent.drain_reason})' if agent.drain_reason else ''}, starts runs again: "
            f"`trainyard agents drain {agent.name} --undo`"
        ),
    ),
    (
        "agent",
        lambda agent: replace(agent, no_room="") if agent.alive and agent.no_room else None,
        lambda agent: f"room on the disk of agent {agent.name}, where {agent.no_room}",
    ),
    (
        "agent",
        lambda agent: replace(agent, alive=True) if not agent.alive else None,
        lambda agent: f"agent {agent.name}, which is silent, comes back",
    ),
)
"""What can hold an agent back: the kind of the suggestion, the agent without it (None: it is not held back), and the
message."""


def _end(job: JobSnapshot, situation: Situation, name_of: Callable[[int], str]) -> Iterator[SuggestionView]:
    running = {gang.key: gang for agent in situation.agents for gang in agent.gangs if not gang.ended}
    smallest = sorted(running.values(), key=lambda gang: (gang.devices, gang.vcpus, gang.memory_bytes, gang.key))
    for gang in smallest[:_MAX_TRIES]:
        agents = tuple(
            replace(agent, gangs=tuple(other for other in agent.gangs if other.key != gang.key))
            for agent in situation.agents
        )
        if replace(situation, agents=agents).starts(job):
            yield SuggestionView(kind="end-job", message=f"the end of {name_of(gang.key)}")
            return


def _first(candidates: Sequence[int], starts: Callable[[int], bool]) -> int | None:
    """The first candidate that starts the job. If one does, all later ones do too."""
    low, high = 0, len(candidates)
    if not candidates or not starts(candidates[-1]):
        return None
    while low < high:
        middle = (low + high) // 2
        if starts(candidates[middle]):
            high = middle
        else:
            low = middle + 1
    return candidates[low]


def _types_below(old: ReplicaRequest, catalog: Catalog) -> list[tuple[str, Resources]]:
    """Smaller machine types of the same series, and of the site, with the same accelerators, the largest first."""
    now = old.resources
    old_type = catalog.machine_types.get(old.machine_type)
    series = _series(old.machine_type, old_type.family) if old_type is not None else None
    types = []
    for name, machine in catalog.machine_types.items():
        memory = round(machine.memory_gb * GIGABYTE)
        smaller = machine.vcpus <= now.vcpus and memory <= now.memory_bytes
        same_size = (machine.vcpus, memory) == (now.vcpus, now.memory_bytes)
        related = series is None or machine.family == "site" or _series(name, machine.family) == series
        if smaller and not same_size and related and _carries(machine, now):
            types.append((name, Resources(machine.vcpus, memory, now.accelerator_type, now.accelerator_count)))
    types.sort(key=lambda named_type: (named_type[1].vcpus, named_type[1].memory_bytes), reverse=True)
    return types[:_MAX_TRIES]


def _series(machine_type: str, family: str) -> tuple[str, str]:
    """`n1-standard-8` -> Compute Engine's n1. Types of other families have no series."""
    return family, machine_type.partition("-")[0] if family == "compute-engine" else ""


def _carries(machine: MachineType, requested: Resources) -> bool:
    if machine.accelerator is not None:
        fixed = machine.accelerator
        return (fixed.type, fixed.count) == (requested.accelerator_type, requested.accelerator_count)
    if not requested.accelerator_count:
        return True
    return requested.accelerator_count in machine.accelerators.get(requested.accelerator_type, ())


def _less(gang: Sequence[ReplicaRequest], than: Sequence[ReplicaRequest]) -> bool:
    """Whether no replica requests more than before."""
    return all(
        smaller.resources.vcpus <= other.resources.vcpus
        and smaller.resources.memory_bytes <= other.resources.memory_bytes
        and (smaller.resources.accelerator_type, smaller.resources.accelerator_count)
        == (other.resources.accelerator_type, other.resources.accelerator_count)
        for smaller, other in zip(gang, than, strict=True)
    )
