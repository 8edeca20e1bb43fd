"""Distribution strategies: one device, all devices of a process, all devices of all processes.

A replica is a device that computes the gradient on its own examples. All replicas have the same state before and after
each step. Each process runs the same program on arrays that reach over all of them (jit, NamedSharding); only the
gradient is written for one replica, by shard_map.

A name ends in its tensor's shape: L local devices times pieces, B examples of one piece.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import jax_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainyard_trainer.cluster import ClusterError, ClusterSpec

PyTree = Any
Tree = TypeVar("Tree")
Item = TypeVar("Item")
Name = Literal["auto", "one-device", "mirrored", "multi-worker-mirrored", "parameter-server"]
Parallel = Literal["shard-map", "fsdp", "pmap"]

AXIS = "replica"
LEAST_SHARDED = 1024  # elements: smaller arrays are whole on every device


class Strategy(Protocol):
    """The interface, in the order of use.

    Attributes:
        accumulate: pieces that a replica computes one after the other in a step.
        whole: each process has the whole state.
    """

    local_replicas: int
    replicas_in_sync: int
    accumulate: int
    whole: bool

    def replicate(self, state: Tree) -> Tree:
        """Copy a state from the host to the devices, in the layout of a compiled step."""

    def average(self, function: Callable[[Any, Any, Any], Tree]) -> Callable[[Any, Any], Tree]:
        """Inside a step: (variables, batch) -> the mean over all replicas of a function of their parts.

        The function is of (variables, the part [B, ...] or with --accumulate [pieces, B, ...], the replica's number).
        """

    def constrain(self, state: Tree) -> Tree:
        """Inside a step: give a new state the layout of the old one."""

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        """Compile a step of (state, ...). A donated state's memory is reused: the argument is invalid afterwards."""

    def put(self, array_LB: Any) -> Any:
        """Start the transfer of this process's part of a batch, [L, B, ...], to the devices."""

    def snapshot(self, tree: Tree) -> Tree:
        """A whole copy on each device, which later steps leave alone. All processes call this together."""

    def to_host(self, tree: Tree) -> Tree:
        """NumPy arrays of a compiled step's result; blocks until it is computed."""


class OneDevice:
    """A single replica: jit without communication."""

    local_replicas = 1
    replicas_in_sync = 1
    whole = True

    def __init__(self, accumulate: int = 1) -> None:
        self.accumulate = accumulate

    def replicate(self, state: Tree) -> Tree:
        copied: Tree = jax.tree.map(jnp.array, state)  # else the caller's arrays could be donated
        return copied

    def average(self, function: Callable[[Any, Any, Any], Tree]) -> Callable[[Any, Any], Tree]:
        return lambda variables, batch: function(variables, batch, 0)

    def constrain(self, state: Tree) -> Tree:
        return state

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        return jax.jit(step, donate_argnums=0 if donate_state else ())

    def put(self, array_LB: Any) -> Any:
        part = array_LB[0] if self.accumulate == 1 else array_LB
        return part if _on_cpu() else jax.device_put(part)

    def snapshot(self, tree: Tree) -> Tree:
        copied: Tree = copy_on_device(tree)
        return copied

    def to_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(np.asarray, jax.device_get(tree))
        return fetched


class Mirrored:
    """A replica on each device of all processes (see distribute.py), each with a copy of the state.

    JAX communicates by gloo between CPUs and by NCCL between GPUs.
    """

    whole = True

    def __init__(self, accumulate: int = 1) -> None:
        self.accumulate = accumulate
        self.local_replicas = jax.local_device_count()
        self.replicas_in_sync = jax.device_count()
        self._mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
        self._whole = NamedSharding(self._mesh, PartitionSpec())
        self._by_replica = NamedSharding(self._mesh, PartitionSpec(AXIS))
        self._copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=self._whole)

    def sharding(self, array: Any) -> NamedSharding:
        """The layout of an array of the state."""
        del array
        return self._whole

    def replicate(self, state: Tree) -> Tree:
        def placed(leaf: Any) -> jax.Array:
            host = np.asarray(leaf)
            # Copies, else the caller's memory could be donated.
            return jax.make_array_from_callback(host.shape, self.sharding(host), lambda part: np.array(host[part]))

        replicated: Tree = jax.tree.map(placed, state)
        return replicated

    def average(self, function: Callable[[Any, Any, Any], Tree]) -> Callable[[Any, Any], Tree]:
        def of_replica(variables: Any, batch: Any) -> Tree:
            return _mean(function(variables, batch, jax.lax.axis_index(AXIS)))

        # Unchecked: the check would insert a sum over replicas into the gradient.
        specs = PartitionSpec(), PartitionSpec(AXIS)
        mapped: Callable[[Any, Any], Tree] = jax.shard_map(
            of_replica, mesh=self._mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
        )
        return mapped

    def constrain(self, state: Tree) -> Tree:
        laid_out: Tree = jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, self.sharding(leaf)), state)
        return laid_out

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        return jax.jit(step, donate_argnums=0 if donate_state else ())

    def put(self, array_LB: Any) -> Any:
        part = array_LB.reshape(-1, *array_LB.shape[2:]) if self.accumulate == 1 else array_LB
        return jax.make_array_from_process_local_data(self._by_replica, part)

    def snapshot(self, tree: Tree) -> Tree:
        whole: Tree = self._copy(tree)
        return whole

    def to_host(self, tree: Tree) -> Tree:
        if not all(leaf.is_fully_replicated for leaf in jax.tree.leaves(tree)):
            tree = self.snapshot(tree)
        fetched: Tree = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), tree)
        return fetched


class FullySharded(Mirrored):
    """Mirrored with parameters and the optimizer's state divided over the devices between steps (FSDP, ZeRO).

    A step gathers the parameters, and each device updates its part. The result is that of Mirrored.
    """

    def __init__(self, accumulate: int = 1) -> None:
        super().__init__(accumulate)
        self.whole = jax.process_count() == 1

    def sharding(self, array: Any) -> NamedSharding:
        dividable = [axis for axis, size in enumerate(array.shape) if size % self.replicas_in_sync == 0]
        if not dividable or array.size < LEAST_SHARDED:
            return self._whole
        axis = max(dividable, key=lambda axis: array.shape[axis])
        return NamedSharding(self._mesh, PartitionSpec(*(None,) * axis, AXIS))


class Pmapped:
    """Mirrored by pmap, the older interface of JAX: arrays have an axis of local devices in front."""

    whole = True

    def __init__(self, accumulate: int = 1) -> None:
        self.accumulate = accumulate
        self.local_replicas = jax.local_device_count()
        self.replicas_in_sync = jax.device_count()
        # The layout of pmap: arrays in another layout would be copied in every step.
        mesh = Mesh(np.asarray(jax.local_devices()), (AXIS,))
        self._sharding = NamedSharding(mesh, PartitionSpec(AXIS))
        self._copy = jax.pmap(lambda tree: jax.tree.map(jnp.copy, tree), AXIS)

    def replicate(self, state: Tree) -> Tree:
        replicated: Tree = jax_utils.replicate(state, axis_name=AXIS)
        return replicated

    def average(self, function: Callable[[Any, Any, Any], Tree]) -> Callable[[Any, Any], Tree]:
        return lambda variables, batch: _mean(function(variables, batch, jax.lax.axis_index(AXIS)))

    def constrain(self, state: Tree) -> Tree:
        return state

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        compiled: Callable[..., PyTree] = jax.pmap(step, AXIS, donate_argnums=0 if donate_state else ())
        return compiled

    def put(self, array_LB: Any) -> Any:
        part = array_LB
        if self.accumulate > 1:
            part = array_LB.reshape(self.local_replicas, self.accumulate, *array_LB.shape[1:])
        return part if _on_cpu() else jax.device_put(part, self._sharding)

    def snapshot(self, tree: Tree) -> Tree:
        copied: Tree = self._copy(tree)
        return copied

    def to_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0))[0], tree)
        return fetched


PARALLEL: dict[Parallel, Callable[[int], Strategy]] = {
    "shard-map": Mirrored, "fsdp": FullySharded, "pmap": Pmapped
}  # fmt: skip


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
        raise ClusterError("--strategy parameter-server requires ps tasks in the cluster: parameterServerCount.")
    if name in ("one-device", "mirrored") and (cluster.num_processes > 1 or cluster.parameter_servers):
        raise ClusterError(
            f"--strategy {name} is for one process, and TF_CONFIG has {cluster.num_processes} that train: leave "
            "--strategy out, or ask for no workers."
        )
    return name


def make_strategy(name: Name, parallel: Parallel = "shard-map", accumulate: int = 1) -> Strategy:
    """Create the strategy; call it after distribute.initialize, when JAX's devices are known."""
    if name == "one-device" or (name not in ("mirrored", "multi-worker-mirrored") and jax.local_device_count() == 1):
        return OneDevice(accumulate)
    return PARALLEL[parallel](accumulate)


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
    """Iterate one item ahead, so that its transfer overlaps with the previous step."""
    buffer: list[Item] = []
    for item in items:
        buffer.append(item)
        if len(buffer) == 2:
            yield buffer.pop(0)
    yield from buffer


@jax.jit  # once: a function that is made for each copy would be compiled for each
def copy_on_device(tree: Tree) -> Tree:
    copied: Tree = jax.tree.map(jnp.copy, tree)
    return copied


def _mean(tree: Tree) -> Tree:
    """The mean over all replicas, by one all-reduce for all leaves: over a network, latency dominates."""
    flat, unravel = ravel_pytree(tree)
    averaged: Tree = unravel(jax.lax.pmean(flat, AXIS))
    return averaged


def _on_cpu() -> bool:
    """On CPU, a step uses host arrays directly; a device_put would cost more than a short step."""
    return jax.default_backend() == "cpu"
