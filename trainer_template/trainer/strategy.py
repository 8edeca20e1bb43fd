"""Distribution strategies: one device, all devices of a process, all devices of all processes.

A replica is a device that computes the step on its own examples. All replicas have the same state before and after each
step. A name ends in its tensor's shape: L local devices, B examples on one of them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol, TypeVar

import jax
import numpy as np
from flax import jax_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainer.cluster import ClusterError, ClusterSpec

PyTree = Any
Tree = TypeVar("Tree")
Item = TypeVar("Item")
Name = Literal["auto", "one-device", "mirrored", "multi-worker-mirrored", "parameter-server"]

AXIS = "replica"


class Strategy(Protocol):
    """The interface, in the order of use. Names and semantics are those of TensorFlow's strategies."""

    local_replicas: int
    replicas_in_sync: int

    def replicate(self, state: Tree) -> Tree:
        """Copy a state from the host to every device, in the layout of a compiled step."""

    def mean(self, tree: Tree) -> Tree:
        """Inside a step: the mean of each leaf over all replicas."""

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        """Compile one replica's (state, [B, ...], ...) -> tree to (replicated state, [L, B, ...], ...) -> tree.

        A donated state's memory is reused: the argument is invalid afterwards.
        """

    def put(self, array_LB: Any) -> Any:
        """Start the transfer of this process's part of a batch, [L, B, ...], to the devices."""

    def to_host(self, tree: Tree) -> Tree:
        """NumPy arrays of a compiled step's result, which is equal in all replicas; blocks until it is computed."""


class OneDevice:
    """A single replica: jit without communication."""

    local_replicas = 1
    replicas_in_sync = 1

    def replicate(self, state: Tree) -> Tree:
        copied: Tree = jax.tree.map(jax.numpy.array, state)  # else the caller's arrays could be donated
        return copied

    def mean(self, tree: Tree) -> Tree:
        return tree

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        return jax.jit(step, donate_argnums=0 if donate_state else ())

    def put(self, array_LB: Any) -> Any:
        return array_LB[0] if _on_cpu() else jax.device_put(array_LB[0])

    def to_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(np.asarray, jax.device_get(tree))
        return fetched


class Mirrored:
    """A replica on each local device, by pmap."""

    def __init__(self) -> None:
        self.local_replicas = self.replicas_in_sync = jax.local_device_count()
        # The layout of pmap: arrays in another layout would be copied in every step.
        mesh = Mesh(np.asarray(jax.local_devices()), (AXIS,))
        self._sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    def replicate(self, state: Tree) -> Tree:
        replicated: Tree = jax_utils.replicate(state, axis_name=AXIS)
        return replicated

    def mean(self, tree: Tree) -> Tree:
        # One all-reduce for all leaves: over a network, latency dominates.
        flat, unravel = ravel_pytree(tree)
        averaged: Tree = unravel(jax.lax.pmean(flat, AXIS))
        return averaged

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        compiled: Callable[..., PyTree] = jax.pmap(step, AXIS, donate_argnums=0 if donate_state else ())
        return compiled

    def put(self, array_LB: Any) -> Any:
        return array_LB if _on_cpu() else jax.device_put(array_LB, self._sharding)

    def to_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(lambda array: np.asarray(array.addressable_data(0))[0], tree)
        return fetched


class MultiWorkerMirrored(Mirrored):
    """A replica on each device of all processes (see distribute.py), by pmap; all processes run the same steps.

    JAX communicates by gloo between CPUs and by NCCL between GPUs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replicas_in_sync = jax.device_count()


def choose_strategy(name: Name, cluster: ClusterSpec) -> Name:
    """Resolve --strategy for the cluster; "auto" remains if it depends on the number of local devices.

    Raises:
        ClusterError: the cluster does not support the strategy.
    """
    if name == "auto":
        if cluster.parameter_servers:
            return "parameter-server"
        return "multi-worker-mirrored" if cluster.num_processes > 1 else "auto"
    if name == "parameter-server" and not cluster.parameter_servers:
        raise ClusterError(
            "--strategy parameter-server requires ps tasks in the cluster: parameterServerCount."
        )
    if name in ("one-device", "mirrored") and (cluster.num_processes > 1 or cluster.parameter_servers):
        raise ClusterError(
            f"--strategy {name} is for one process, and TF_CONFIG has {cluster.num_processes} that train: leave "
            "--strategy out, or ask for no workers."
        )
    return name


def make_strategy(name: Name) -> Strategy:
    """Create the strategy; call it after distribute.initialize, when JAX's devices are known."""
    if name == "multi-worker-mirrored":
        return MultiWorkerMirrored()
    if name == "one-device" or (name != "mirrored" and jax.local_device_count() == 1):
        return OneDevice()
    return Mirrored()


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
    """Iterate one item ahead, so that its transfer overlaps with the previous step."""
    buffer: list[Item] = []
    for item in items:
        buffer.append(item)
        if len(buffer) == 2:
            yield buffer.pop(0)
    yield from buffer


def _on_cpu() -> bool:
    """On CPU, a step uses host arrays directly; a device_put would cost more than a short step."""
    return jax.default_backend() == "cpu"
