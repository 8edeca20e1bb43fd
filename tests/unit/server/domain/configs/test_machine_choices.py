"""Machines that the form of a new job offers: those of which an agent can hold a replica."""

from trainyard_protocol.job.machines import Accelerator, Catalog, MachineType
from trainyard_protocol.job.resources import Capacity, Gpu, Pool
from trainyard_protocol.views.configs import MachineChoice
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


def test_choices_are_the_sizes_that_an_agent_holds_each_once() -> None:
    gpus = tuple(Gpu(id=str(n), type="NVIDIA_TESLA_T4") for n in range(2))
    host = Capacity(cpus=tuple(range(4)), memory_bytes=16 * GB, gpus=gpus)
    assert names(agent(host)) == [("local-1", 0), ("n1-large", 0), ("n1-large", 1), ("trainer", 0), ("n1-large", 2)]
    assert machine_choices(CATALOG, [agent(host)])[2] == MachineChoice(
        machine_type="n1-large",
        title="4 CPUs, 15 GB, 1 × NVIDIA_TESLA_T4",
        accelerator_type="NVIDIA_TESLA_T4",
        accelerator_count=1,
    )
    small = Capacity(cpus=(0,), memory_bytes=2 * GB)
    assert names(agent(small)) == [("local-1", 0)]
    assert names(agent(small), agent(host)) == names(agent(host))


def test_nodes_of_a_pool_hold_a_replica_each_and_not_together() -> None:
    pools = (Pool(nodes=40, vcpus=2, memory_bytes=4 * GB, accelerator_type="NVIDIA_TESLA_T4", accelerator_count=1),)
    assert names(agent(Capacity.of_pools(*pools))) == [("local-1", 0)]


def test_small_machines_are_offered_while_no_agent_can_run_a_program() -> None:
    small = [("local-1", 0), ("n1-large", 0)]
    host = Capacity(cpus=tuple(range(64)), memory_bytes=256 * GB)
    for agents in ([], [agent(host, alive=False)], [agent(host, runs_packages=False)]):
        assert names(*agents) == small
    assert names(agent(Capacity(cpus=(0,), memory_bytes=GB))) == small
