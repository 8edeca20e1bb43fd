"""Machines that a form offers for a new job: the types of the catalogue that an agent of the site can run. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trainyard_protocol.answers.configs import MachineChoice
from trainyard_protocol.job.machines import Catalog, MachineType
from trainyard_protocol.job.resources import GIGABYTE, Capacity
from trainyard_server.domain.scheduling.resources import AgentSnapshot

_SMALL_CPUS = 8
"""The largest machine that is offered while there is no agent."""


def machine_choices(catalog: Catalog, agents: Sequence[AgentSnapshot]) -> tuple[MachineChoice, ...]:
    """The machines by size, those without accelerators first. Types of the same size are offered once: by the name of
    one's own machines, where there is one. While no agent holds any, the small ones are offered."""
    capacities = [agent.capacity for agent in agents if agent.alive and agent.runs_packages]
    sizes = _sizes(catalog)
    held = [size for size in sizes if any(_holds(capacity, size) for capacity in capacities)]
    offered = held or [size for size in sizes if not size.accelerators and size.vcpus <= _SMALL_CPUS]
    return tuple(sizes[size] for size in sorted(offered))


class _Size(NamedTuple):
    """Everything that two machine types are compared by."""

    accelerator: str
    accelerators: int
    vcpus: int
    memory_gb: float


def _sizes(catalog: Catalog) -> dict[_Size, MachineChoice]:
    """A choice of each size. Legacy types are left out: each has a newer one."""
    sizes: dict[_Size, MachineChoice] = {}
    for name, machine in sorted(catalog.machine_types.items(), key=lambda item: item[1].family != "site"):
        for accelerator, count, is_added in _accelerators(machine) if machine.family != "legacy" else ():
            choice = MachineChoice(
                machine_type=name,
                title=_title(machine, accelerator, count),
                accelerator_type=accelerator if is_added else "",
                accelerator_count=count if is_added else 0,
            )
            sizes.setdefault(_Size(accelerator.upper(), count, machine.vcpus, machine.memory_gb), choice)
    return sizes


def _accelerators(machine: MachineType) -> Iterator[tuple[str, int, bool]]:
    """The accelerators that a machine may have, and whether the config adds them."""
    if machine.accelerator is not None:
        yield machine.accelerator.type, machine.accelerator.count, False
        return
    yield "", 0, False
    for type_, counts in machine.accelerators.items():
        for count in counts:
            yield type_, count, True


def _holds(capacity: Capacity, size: _Size) -> bool:
    """Whether one host or node of an agent is as large."""
    memory, wanted = round(size.memory_gb * GIGABYTE), size.accelerators
    if capacity.pools:
        return any(
            pool.vcpus >= size.vcpus
            and pool.memory_bytes >= memory
            and (not wanted or (pool.accelerator_type.upper() == size.accelerator and pool.accelerator_count >= wanted))
            for pool in capacity.pools
        )
    return (
        capacity.vcpus >= size.vcpus
        and capacity.memory_bytes >= memory
        and (not wanted or capacity.accelerators[size.accelerator] >= wanted)
    )


def _title(machine: MachineType, accelerator: str, count: int) -> str:
    """`4 CPUs, 8 GB, 1 × NVIDIA_TESLA_T4`"""
    cpus = "1 CPU" if machine.vcpus == 1 else f"{machine.vcpus} CPUs"
    extra = f", {count} × {accelerator}" if count else ""
    return f"{cpus}, {machine.memory_gb:g} GB{extra}"
