"""Agents that could hold a gang only together: a gang runs on one agent, and these are named to who waits. Pure."""

from collections import Counter
from collections.abc import Iterable

from trainyard_protocol.job.machines import ReplicaRequest
from trainyard_server.domain.scheduling.resources import AgentSnapshot

ONE_AGENT = "a gang runs on one agent"


def together(gang: Iterable[ReplicaRequest], agents: Iterable[AgentSnapshot]) -> tuple[AgentSnapshot, ...]:
    """The agents, the largest first, that could hold every replica if they were empty; () if these are not several.

    First fit, the largest replicas first.
    """
    shapes = Counter(request.resources for request in gang)
    used: dict[str, AgentSnapshot] = {}
    nodes = [
        (agent, [agent.capacity.vcpus, agent.capacity.memory_bytes], agent.capacity.accelerators)
        for agent in sorted(agents, key=_size, reverse=True)
    ]
    for shape in sorted(shapes, key=lambda need: (need.accelerator_count, need.vcpus, need.memory_bytes), reverse=True):
        left, kind = shapes[shape], shape.accelerator_type.upper()
        for agent, room, gpus in nodes:
            fits = [room[0] // max(1, shape.vcpus), room[1] // max(1, shape.memory_bytes)]
            if shape.accelerator_count:
                fits.append(gpus[kind] // shape.accelerator_count)
            if placed := min(left, *fits):
                used[agent.agent_id] = agent
                left -= placed
                room[0] -= placed * shape.vcpus
                room[1] -= placed * shape.memory_bytes
                gpus[kind] -= placed * shape.accelerator_count
        if left:
            return ()
    return tuple(used.values()) if len(used) > 1 else ()


def together_reason(gang: Iterable[ReplicaRequest], agents: Iterable[AgentSnapshot]) -> str:
    """A clause that names these agents, or ""."""
    names = [agent.name for agent in together(gang, agents)]
    return f"{listed(names)} together have room for it, but {ONE_AGENT}" if names else ""


def listed(names: list[str]) -> str:
    """`a, b and c`"""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _size(agent: AgentSnapshot) -> tuple[int, int, int]:
    capacity = agent.capacity
    return (capacity.accelerators.total(), capacity.vcpus, capacity.memory_bytes)
