"""Capacity of a machine or an engine for replicas: CPUs, memory, GPUs, TPUs."""

from collections import Counter

from trainyard_protocol.message import Many, Wire

GIGABYTE = 10**9


def is_tpu(accelerator_type: str) -> bool:
    """Whether it is a type of TPU, such as TPU_V3."""
    return accelerator_type.upper().startswith("TPU_")


class Gpu(Wire):
    """`id` is the driver's (a UUID), or `tpu-0` for a core of a TPU; `type` is an accelerator type as the catalogue
    writes it."""

    id: str
    type: str
    memory_bytes: int = 0


class Pool(Wire):
    """Nodes of one shape in an engine, and what each of them can give to replicas. `accelerators_only`: they take no
    replica without accelerators."""

    nodes: int
    vcpus: int
    memory_bytes: int
    accelerator_type: str = ""
    accelerator_count: int = 0
    accelerators_only: bool = False


class Capacity(Wire):
    """The capacity of an agent for replicas, used or not: CPU numbers, bytes, devices. That of an engine has `pools` in
    place of CPU numbers and devices; `memory_bytes` is their sum."""

    cpus: Many[int]
    memory_bytes: int
    gpus: Many[Gpu] = ()
    pools: Many[Pool] = ()

    @classmethod
    def of_pools(cls, *pools: Pool) -> "Capacity":
        return cls(cpus=(), memory_bytes=sum(pool.nodes * pool.memory_bytes for pool in pools), pools=pools)

    @property
    def vcpus(self) -> int:
        return len(self.cpus) + sum(pool.nodes * pool.vcpus for pool in self.pools)

    @property
    def accelerators(self) -> Counter[str]:
        """Number of devices by type, in capitals."""
        counts = Counter(gpu.type.upper() for gpu in self.gpus)
        for pool in self.pools:
            if pool.accelerator_count:
                counts[pool.accelerator_type.upper()] += pool.nodes * pool.accelerator_count
        return counts
