"""Pools: whether the nodes of an engine have room for replicas. Pure.

The engine places replicas by its own rules, so the answer is an estimate: each replica, the largest first, goes to the
node with room on which the least is left. Where the engine finds less room, the run waits there and is given back.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from trainyard_protocol.job.machines import Resources
from trainyard_protocol.job.resources import Capacity


class PoolNode(NamedTuple):
    """A node by what it has left; they sort by size. `accelerators_only`: it takes no replica without accelerators."""

    accelerator_count: int
    vcpus: int
    memory_bytes: int
    accelerator_type: str
    accelerators_only: bool


@dataclass(frozen=True, slots=True)
class FreeNodes:
    """Nodes by what each has left: the shapes that there are, the smallest first, and the number of nodes of each. A
    cluster beside other people's pods has nearly as many shapes as nodes."""

    shapes: list[PoolNode]
    counts: dict[PoolNode, int]


def nodes_of(capacity: Capacity) -> FreeNodes:
    """The nodes of an engine, all empty."""
    counts: dict[PoolNode, int] = {}
    for pool in (pool for pool in capacity.pools if pool.nodes > 0):
        kind = pool.accelerator_type.upper()
        node = PoolNode(pool.accelerator_count, pool.vcpus, pool.memory_bytes, kind, pool.accelerators_only)
        counts[node] = counts.get(node, 0) + pool.nodes
    return FreeNodes(sorted(counts), counts)


def packed(nodes: FreeNodes, replicas: Iterable[Resources]) -> FreeNodes | None:
    """Rest of the nodes beside the replicas; None where they have no room for each."""
    shapes, counts = nodes.shapes.copy(), nodes.counts.copy()
    for replica in sorted(replicas, key=_size, reverse=True):
        large_enough = islice(shapes, bisect_left(shapes, _size(replica)), None)
        node = next((node for node in large_enough if _holds(node, replica)), None)
        if node is None:
            return None
        counts[node] -= 1
        if not counts[node]:
            del counts[node], shapes[bisect_left(shapes, node)]
        left = _without(node, replica)
        if left not in counts:
            insort(shapes, left)
        counts[left] = counts.get(left, 0) + 1
    return FreeNodes(shapes, counts)


def _size(resources: Resources) -> tuple[int, int, int]:
    return (resources.accelerator_count, resources.vcpus, resources.memory_bytes)


def _holds(node: PoolNode, replica: Resources) -> bool:
    if replica.accelerator_count and replica.accelerator_type != node.accelerator_type:
        return False
    if node.accelerators_only and not replica.accelerator_count:
        return False
    return (
        node.accelerator_count >= replica.accelerator_count
        and node.vcpus >= replica.vcpus
        and node.memory_bytes >= replica.memory_bytes
    )


def _without(node: PoolNode, replica: Resources) -> PoolNode:
    return node._replace(
        accelerator_count=node.accelerator_count - replica.accelerator_count,
        vcpus=node.vcpus - replica.vcpus,
        memory_bytes=node.memory_bytes - replica.memory_bytes,
    )
