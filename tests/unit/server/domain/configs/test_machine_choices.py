"""Machines that the form of a new job offers: those of which an agent can hold a replica."""

from trainyard_protocol.job.machines import Accelerator, Catalog, MachineType
from trainyard_protocol.job.resources import Capacity, Pool
from trainyard_server.domain.configs.machine_choices import machine_choices
from trainyard_server.domain.scheduling.resources import AgentSnapshot

GB = 10**9
T4 = {"NVIDIA_TESLA_T4": [1, 2, 4]}
CATALOG = Catalog(
    machine_types={
        "standard": MachineType(family="legacy", vcpus=1, memory_gb=1),
        "n1-small": MachineType(family="compute-engine", vcpus=1, memory_gb=2),
        "n1-large": MachineType(family="compute-engine", vcpus=4, memory_gb=15, accelerators=T4),
        "local-1": MachineType(family="site", vcpus=1, memory_gb=2),
        "local-32": MachineType(family="site", vcpus=32, memory_gb=64),
        "trainer": MachineType(
            family="site", vcpus=2, memory_gb=4, accelerator=Accelerator(type="nvidia_tesla_t4", count=2)
        ),
    }
)


def agent(capacity: Capacity, **given: bool) -> AgentSnapshot:
    return AgentSnapshot("a", "a", capacity, mode="strict", runs_images=True, **given)  # type: ignore[arg-type]


def names(*agents: AgentSnapshot) -> list[tuple[str, int]]:
    return [(choice.machine_type, choice.accelerator_count) for choice in machine_choices(CATALOG, agents)]


def test_nodes_of_a_pool_hold_a_replica_each_and_not_together() -> None:
    pools = (Pool(nodes=40, vcpus=2, memory_bytes=4 * GB, accelerator_type="NVIDIA_TESLA_T4", accelerator_count=1),)
    assert names(agent(Capacity.of_pools(*pools))) == [("local-1", 0)]
