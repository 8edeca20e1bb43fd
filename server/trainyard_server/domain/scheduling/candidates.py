"""Each agent as a place for one job: what is free there, and what the job lacks. Pure."""

from collections.abc import Iterable

from trainyard_protocol.machines import GIGABYTE
from trainyard_protocol.views import FitView
from trainyard_server.domain.scheduling.placement import Home, Host, Yard
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import Agent, by_type, describe, has
from trainyard_server.domain.scheduling.scheduler import Queued


def fits(job: Queued, agents: Iterable[Agent], limits: Quotas) -> tuple[FitView, ...]:
    """Each agent, and what it lacks for the job just now."""
    yard = Yard(agents, limits)
    homes = {
        home.host.agent.agent_id: home
        for alive in (True, False)
        for home in yard.homes(job.gang, job.needs_images, alive)
    }
    return tuple(
        FitView(
            agent=host.agent.name,
            alive=host.agent.alive,
            has=has(host.agent.capacity),
            free=describe(len(host.free_cpus), max(0, host.free_memory), by_type(host.free_gpus)),
            home=host.agent.agent_id in homes,
            lacks=_lacks(job, host, homes.get(host.agent.agent_id)),
        )
        for host in yard.hosts
    )


def _lacks(job: Queued, host: Host, home: Home | None) -> str:
    agent = host.agent
    if job.needs_images and not agent.runs_images:
        return "cannot run container images"
    if home is None:
        return "too small for it, also when nothing else runs there"
    if not agent.alive:
        return "silent: nothing is started there until it is heard of again"
    missing = [max(0, wanted - free) for wanted, free in zip(home.amounts, host.ledger.free, strict=True)]
    cpus, memory, devices, *of_types = missing
    types = [f"{count} x {kind}" for kind, count in zip(host.types, of_types, strict=True) if count]
    parts = [f"{cpus} vCPU"] * bool(cpus) + [f"{memory / GIGABYTE:.1f} GB"] * bool(memory)
    parts += types or [f"{devices} GPUs"] * bool(devices)
    return f"lacks {', '.join(parts)}" if parts else ""
