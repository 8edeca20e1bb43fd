"""Agents as candidates for one job: what is free on each, and what the job lacks there. Pure."""

from collections.abc import Iterable

from trainyard_protocol.answers.why import CandidateView
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_server.domain.scheduling.placement import Candidate, Cluster, Node
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.reaching import apart_by_agent
from trainyard_server.domain.scheduling.resources import (
    AgentSnapshot,
    asked,
    cpus_of,
    describe,
    full_queue,
    gpus_of,
    has,
    memory_of,
)
from trainyard_server.domain.scheduling.spreading import NOTHING_SHARED, SharedDirs
from trainyard_server.domain.snapshots import JobSnapshot


def candidates(
    job: JobSnapshot, agents: Iterable[AgentSnapshot], limits: Quotas, shared: SharedDirs = NOTHING_SHARED
) -> tuple[CandidateView, ...]:
    """Every agent, with what it lacks now for the job."""
    cluster = Cluster(agents, limits)
    spreads = shared.lets_spread(job.training_input) and len(job.gang) > 1
    groups = cluster.spreading_groups(job.needs) if spreads else ()
    apart = {agent_id: clause for group in groups for agent_id, clause in apart_by_agent(group).items()}
    by_agent = {
        candidate.node.agent.agent_id: candidate
        for alive in (True, False)
        for candidate in cluster.candidates(job.gang, job.needs, alive, spreads)
    }
    return tuple(
        CandidateView(
            agent=node.agent.name,
            alive=node.agent.alive,
            has=has(node.agent.capacity),
            free=describe(node.free_vcpus, max(0, node.free_memory), node.free_devices),
            home=node.agent.agent_id in by_agent,
            lacks=_lacks(job, node, by_agent.get(node.agent.agent_id), apart.get(node.agent.agent_id, "")),
        )
        for node in cluster.nodes
    )


def _lacks(job: JobSnapshot, node: Node, candidate: Candidate | None, apart: str) -> str:
    agent = node.agent
    if not agent.starts(job.needs_images) and not agent.engine_problem:
        if not job.needs_images:
            return agent.waits_for(job.needs_images)
        return "runs no containers: restart its agent without --runtime process"
    if missing_mount := agent.lacks_mount(job.needs):
        return missing_mount
    if candidate is None:
        return apart or _too_small(job, agent)
    if agent.draining:
        return f"draining: {agent.why_draining}"
    if not agent.alive:
        return "silent: nothing is started there until it reports again"
    if agent.no_room:
        return f"no room on its disk: {agent.no_room}"
    if not agent.starts(job.needs_images):
        problem = agent.waits_for(job.needs_images)
        return f"{problem}: start Docker there" if agent.has_no_docker else problem
    if not candidate.shares:
        full = not any(node.room.holds([share]) for share in asked(job.gang))
        return f"has room only for a part of it{', and for no replica now' if full else ''}"
    if agent.in_flight:
        return "" if node.has_room(candidate) else full_queue(agent)
    missing = [
        max(0, requested - free) for requested, free in zip(candidate.amounts, node.reservations.free, strict=True)
    ]
    cpus, memory, devices, *of_types = missing
    types = [f"{count} x {kind}" for kind, count in zip(node.types, of_types, strict=True) if count]
    parts = [f"{cpus} vCPU"] * bool(cpus) + [f"{memory / GIGABYTE:.1f} GB"] * bool(memory)
    parts += types or [f"{devices} GPUs"] * bool(devices)
    if not parts and not node.has_nodes(candidate.shares):
        return "lacks room for each replica on a node"
    return f"lacks {', '.join(parts)}" if parts else ""


def _too_small(job: JobSnapshot, agent: AgentSnapshot) -> str:
    """The resources of which the whole machine has less than the gang needs."""
    shares, capacity = asked(job.gang), agent.capacity
    there = capacity.accelerators
    vcpus, memory = cpus_of(shares, capacity), memory_of(shares)
    parts = []
    if vcpus > capacity.vcpus:
        parts.append(f"only {capacity.vcpus} of {vcpus} vCPU")
    if memory > capacity.memory_bytes:
        parts.append(f"only {capacity.memory_bytes / GIGABYTE:.1f} of {memory / GIGABYTE:.1f} GB")
    parts += [
        f"only {there[kind]} of {count} x {kind}" if there[kind] else f"no {kind}"
        for kind, count in gpus_of(shares).items()
        if kind is not None and count > there[kind]
    ]
    return f"has {', '.join(parts) or 'no nodes with room for each replica'}"
