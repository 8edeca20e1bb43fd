"""Distribution strategies: one device, all devices of a process, all devices of all processes.

A replica is a device, or devices that divide a matrix, with its own part of each batch. Each process runs the same
program on arrays that reach over all of them (jit, NamedSharding). By `Sharded` XLA divides the whole computation; by
`Mirrored` the gradient is written for one replica (shard_map), and by `Pmapped` the whole step is.

A name ends in its tensor's shape: L local replicas times pieces, B examples of one piece.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import jax_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainyard_trainer.models.names import leaf_name
from trainyard_trainer.processes.cluster import ClusterError, ClusterSpec

PyTree = Any
Tree = TypeVar("Tree")
Item = TypeVar("Item")
Name = Literal["auto", "one-device", "mirrored", "multi-worker-mirrored"]
Parallel = Literal["mirrored", "fsdp", "pmap"]
Sizes = Sequence[tuple[str, int]]
Rules = Sequence[tuple[str, PartitionSpec]]
"""(regular expression for a parameter's name, axes of the mesh for its axes), of which the first match counts."""

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

    def initialize(self, function: Callable[[Any], Tree], loaded: Any) -> Tree:
        """The result of a function of arrays on the host, on the devices in the layout of a compiled step."""

    def replicate(self, state: Tree) -> Tree:
        """Copy a state from the host to the devices, in the layout of a compiled step."""

    def gather(self, params: Tree) -> Tree:
        """Inside a step: the parameters as the network uses them."""

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
        """A copy for `to_host` that later steps leave alone. Where the state is divided, all processes call it."""

    def to_host(self, tree: Tree) -> Tree:
        """Whole NumPy arrays of a compiled step's result; blocks until it is computed. On all processes together."""


class _Whole(Strategy):
    """Each device that has any of the state has all of it."""

    whole = True

    def initialize(self, function: Callable[[Any], Tree], loaded: Any) -> Tree:
        host: Tree = jax.device_get(jax.jit(function)(loaded))
        return self.replicate(host)

    def gather(self, params: Tree) -> Tree:
        return params

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        return jax.jit(step, donate_argnums=0 if donate_state else ())

    def constrain(self, state: Tree) -> Tree:
        return state

    def snapshot(self, tree: Tree) -> Tree:
        # The chief is alone here, so its first device alone computes.
        copied: Tree = copy_on_device(jax.tree.map(lambda leaf: leaf.addressable_data(0), tree))
        return copied


class OneDevice(_Whole):
    """A single replica: jit without communication."""

    local_replicas = 1
    replicas_in_sync = 1

    def __init__(self, accumulate: int = 1) -> None:
        self.accumulate = accumulate

    def replicate(self, state: Tree) -> Tree:
        copied: Tree = jax.tree.map(jnp.array, state)  # else the caller's arrays could be donated
        return copied

    def average(self, function: Callable[[Any, Any, Any], Tree]) -> Callable[[Any, Any], Tree]:
        return lambda variables, batch: function(variables, batch, 0)

    def put(self, array_LB: Any) -> Any:
        part = array_LB[0] if self.accumulate == 1 else array_LB
        return part if _on_cpu() else jax.device_put(part)

    def to_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(np.asarray, tree if _on_cpu() else jax.device_get(tree))
        return fetched


class Mirrored(_Whole):
    """A replica on each device of all processes (see distribute.py), each with a copy of the state.

    JAX communicates by gloo between CPUs and by NCCL between GPUs.
    """

    def __init__(self, accumulate: int = 1) -> None:
        self.accumulate = accumulate
        self.local_replicas = jax.local_device_count()
        self.replicas_in_sync = jax.device_count()
        self._mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
        self._whole = NamedSharding(self._mesh, PartitionSpec())
        self._by_replica = NamedSharding(self._mesh, PartitionSpec(AXIS))

    def replicate(self, state: Tree) -> Tree:
        replicated: Tree = jax.tree.map(lambda leaf: _placed(leaf, self._whole), state)
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
        laid_out: Tree = jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, self._whole), state)
        return laid_out

    def put(self, array_LB: Any) -> Any:
        part = array_LB.reshape(-1, *array_LB.shape[2:]) if self.accumulate == 1 else array_LB
        return jax.make_array_from_process_local_data(self._by_replica, part)

    def to_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), tree)
        return fetched


class Sharded:
    """jit over a mesh of devices with the axes data, fsdp and tensor.

    The state has a copy on each index of `data`, and is divided over `fsdp`; over `tensor`, matrices are divided as the
    rules say. A batch is divided over data and fsdp, and computed as one: BatchNorm and dropout do not depend on how
    many devices there are. Parameters are gathered over fsdp where the network uses them, and their gradients, which
    are of one layer each, are divided as soon as they are computed.
    """

    def __init__(self, sizes: Sizes, accumulate: int = 1, rules: Rules = ()) -> None:
        """Raises ClusterError if the devices of the job cannot be divided so."""
        devices, local = jax.device_count(), jax.local_device_count()
        shape = {"data": 1, "fsdp": 1, "tensor": 1} | dict(sizes)
        if "data" not in dict(sizes):  # what is left
            shape["data"] = max(1, devices // math.prod(shape.values()))
        if math.prod(shape.values()) != devices or local % shape["tensor"]:
            wanted = ",".join(f"{axis}={size}" for axis, size in sizes)
            raise ClusterError(
                f"--mesh {wanted} does not divide the {devices} devices of this job, {local} in each process. The "
                "product of its sizes must be their number, and the devices of `tensor` are of one process."
            )
        self.accumulate, self._rules, self._fsdp = accumulate, rules, shape["fsdp"]
        self.local_replicas = local // shape["tensor"]
        self.replicas_in_sync = devices // shape["tensor"]
        self.whole = jax.process_count() == 1
        self._sizes = shape
        self._mesh = Mesh(np.asarray(jax.devices()).reshape(*shape.values()), tuple(shape))
        self._everywhere = NamedSharding(self._mesh, PartitionSpec())

    def shardings(self, tree: PyTree) -> PyTree:
        """The layout of each array of a state, or of a part of one."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: NamedSharding(self._mesh, self._spec(path, leaf)), tree
        )

    def initialize(self, function: Callable[[Any], Tree], loaded: Any) -> Tree:
        out = self.shardings(jax.eval_shape(function, loaded))
        initialized: Tree = jax.jit(function, out_shardings=out)(self.replicate(loaded))
        return initialized

    def replicate(self, state: Tree) -> Tree:
        replicated: Tree = jax.tree.map(_placed, state, self.shardings(state))
        return replicated

    def gather(self, params: Tree) -> Tree:
        gathered: Tree = jax.tree.map(lambda leaf, sharding: _gather(sharding, leaf), params, self.shardings(params))
        return gathered

    def average(self, function: Callable[[Any, Any, Any], Tree]) -> Callable[[Any, Any], Tree]:
        return lambda variables, batch: function(variables, batch, 0)

    def constrain(self, state: Tree) -> Tree:
        laid_out: Tree = jax.tree.map(jax.lax.with_sharding_constraint, state, self.shardings(state))
        return laid_out

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        return jax.jit(step, donate_argnums=0 if donate_state else ())

    def put(self, array_LB: Any) -> Any:
        by_replica = array_LB.reshape(self.local_replicas, self.accumulate, *array_LB.shape[1:])
        part = by_replica.swapaxes(0, 1).reshape(self.accumulate, -1, *array_LB.shape[2:])
        pieces = (None,) * (self.accumulate > 1)
        sharding = NamedSharding(self._mesh, PartitionSpec(*pieces, ("data", "fsdp")))
        return jax.make_array_from_process_local_data(sharding, part if self.accumulate > 1 else part[0])

    def snapshot(self, tree: Tree) -> Tree:
        copied: Tree = copy_on_device(tree)
        return copied

    def to_host(self, tree: Tree) -> Tree:
        def fetched(leaf: jax.Array) -> Any:
            if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
                leaf = _whole_copy(self._everywhere, leaf)  # one after the other: no device holds all at once
            return np.asarray(leaf if leaf.is_fully_addressable else leaf.addressable_data(0))

        whole: Tree = jax.tree.map(fetched, tree)
        return whole

    def _spec(self, path: Any, leaf: Any) -> PartitionSpec:
        name = leaf_name(path)
        axes: list[Any] = [None] * len(leaf.shape)
        rule = next((spec for pattern, spec in self._rules if re.search(pattern, name) and len(spec) <= len(axes)), ())
        for number, axis in enumerate(rule):
            if axis is not None and leaf.shape[number] % self._sizes[axis] == 0:
                axes[number] = axis
        free = [number for number, size in enumerate(leaf.shape) if axes[number] is None and size % self._fsdp == 0]
        if free and self._fsdp > 1 and "fsdp" not in axes and math.prod(leaf.shape) >= LEAST_SHARDED:
            axes[max(free, key=lambda number: leaf.shape[number])] = "fsdp"
        return PartitionSpec(*axes)


class Pmapped(_Whole):
    """Mirrored by pmap, the older interface of JAX: arrays have an axis of local devices in front."""

    def __init__(self, accumulate: int = 1) -> None:
        self.accumulate = accumulate
        self.local_replicas = jax.local_device_count()
        self.replicas_in_sync = jax.device_count()
        # The layout of pmap: arrays in another layout would be copied in every step.
        mesh = Mesh(np.asarray(jax.local_devices()), (AXIS,))
        self._sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    def replicate(self, state: Tree) -> Tree:
        replicated: Tree = jax_utils.replicate(state, axis_name=AXIS)
        return replicated

    def average(self, function: Callable[[Any, Any, Any], Tree]) -> Callable[[Any, Any], Tree]:
        return lambda variables, batch: _mean(function(variables, batch, jax.lax.axis_index(AXIS)))

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        compiled: Callable[..., PyTree] = jax.pmap(step, AXIS, donate_argnums=0 if donate_state else ())
        return compiled

    def put(self, array_LB: Any) -> Any:
        part = array_LB
        if self.accumulate > 1:
            part = array_LB.reshape(self.local_replicas, self.accumulate, *array_LB.shape[1:])
        return part if _on_cpu() else jax.device_put(part, self._sharding)

    def to_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0))[0], tree)
        return fetched


def choose_strategy(name: Name, cluster: ClusterSpec) -> Name:
    """Resolve --strategy for the cluster; "auto" remains if it depends on the number of local devices.

    Raises:
        ClusterError: the cluster does not support the strategy.
    """
    if name == "auto":
        return "multi-worker-mirrored" if cluster.num_processes > 1 else "auto"
    if name in ("one-device", "mirrored") and cluster.num_processes > 1:
        raise ClusterError(
            f"--strategy {name} is for one process, and TF_CONFIG has {cluster.num_processes} that train: leave "
            "--strategy out, or ask for no workers."
        )
    return name


def make_strategy(
    name: Name, parallel: Parallel = "mirrored", accumulate: int = 1, mesh: Sizes | None = None, rules: Rules = ()
) -> Strategy:
    """Create the strategy; call it after distribute.initialize, when JAX's devices are known.

    Raises:
        ClusterError: the devices cannot be divided by the mesh.
    """
    if mesh is None and (
        name == "one-device" or (name not in ("mirrored", "multi-worker-mirrored") and jax.local_device_count() == 1)
    ):
        return OneDevice(accumulate)
    if mesh is not None or parallel == "fsdp":
        return Sharded(mesh or [("fsdp", jax.device_count())], accumulate, rules)
    return Pmapped(accumulate) if parallel == "pmap" else Mirrored(accumulate)


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather(sharding: NamedSharding, leaf: jax.Array) -> jax.Array:
    """A parameter that is whole but over `tensor`. Its gradient is divided: XLA need not keep all of it."""
    axes = (None if axis == "fsdp" else axis for axis in sharding.spec)
    gathered: jax.Array = jax.lax.with_sharding_constraint(leaf, NamedSharding(sharding.mesh, PartitionSpec(*axes)))
    return gathered


_gather.defvjp(
    lambda sharding, leaf: (_gather(sharding, leaf), None),
    lambda sharding, _residual, gradient: (jax.lax.with_sharding_constraint(gradient, sharding),),
)


@functools.partial(jax.jit, static_argnums=0)
def _whole_copy(everywhere: NamedSharding, leaf: jax.Array) -> jax.Array:
    whole: jax.Array = jax.lax.with_sharding_constraint(leaf, everywhere)
    return whole


def _placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """An array of the host on the devices; a copy, else the caller's memory could be donated."""
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: np.array(host[part]))


def _mean(tree: Tree) -> Tree:
    """The mean over all replicas, by one all-reduce for all leaves: over a network, latency dominates."""
    flat, unravel = ravel_pytree(tree)
    averaged: Tree = unravel(jax.lax.pmean(flat, AXIS))
    return averaged


@functools.cache  # asked for each part of a batch
def _on_cpu() -> bool:
    """On CPU, a step uses host arrays directly; a device_put would cost more than a short step."""
    return jax.default_backend() == "cpu"
