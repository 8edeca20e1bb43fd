"""Where a step runs, and how what its replicas compute becomes one: one device, all of a machine, all of all machines.

A replica is a device that computes the step on examples of its own. All replicas are in sync: they hold the same state
before and after each step. A name ends in its tensor's shape: L local devices, B examples on one of them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol, TypeVar

import jax
import numpy as np
from flax import jax_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainer.cluster import Cluster, ClusterError

PyTree = Any
Tree = TypeVar("Tree")
Item = TypeVar("Item")
Name = Literal["auto", "one-device", "mirrored", "multi-worker-mirrored", "parameter-server"]

AXIS = "replica"


class Strategy(Protocol):
    """The contract, in the order of use. The strategies are TensorFlow's, and have their names."""

    local_replicas: int
    replicas_in_sync: int

    def start(self, state: Tree) -> Tree:
        """A state on the host -> the same on every device, in the layout that a compiled step takes and leaves."""

    def mean(self, tree: Tree) -> Tree:
        """Inside a step: the mean over all replicas of each leaf."""

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        """(state, [B, ...], ...) -> tree, written for one replica, to (replicated state, [L, B, ...], ...) -> tree.

        A donated state's memory is used for the new one: the old one is gone.
        """

    def put(self, array_LB: Any) -> Any:
        """This process's part of a batch [L, B, ...], on its way to the devices: returns before it is there."""

    def on_host(self, tree: Tree) -> Tree:
        """What a compiled step gives, alike in all replicas, as NumPy arrays; waits until it is computed."""


class OneDevice:
    """No other replica, so nothing is exchanged: a plain jit."""

    local_replicas = 1
    replicas_in_sync = 1

    def start(self, state: Tree) -> Tree:
        copied: Tree = jax.tree.map(jax.numpy.array, state)  # what the caller has may be donated otherwise
        return copied

    def mean(self, tree: Tree) -> Tree:
        return tree

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        return jax.jit(step, donate_argnums=0 if donate_state else ())

    def put(self, array_LB: Any) -> Any:
        return array_LB[0] if _on_cpu() else jax.device_put(array_LB[0])

    def on_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(np.asarray, jax.device_get(tree))
        return fetched


class Mirrored:
    """A replica on each device that JAX sees in this process: pmap, which averages over them (NCCL on GPUs)."""

    def __init__(self) -> None:
        self.local_replicas = self.replicas_in_sync = jax.local_device_count()
        # The layout that pmap uses: what is already in it is taken as it is, what is not is copied in every step.
        mesh = Mesh(np.asarray(jax.local_devices()), (AXIS,))
        self._sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    def start(self, state: Tree) -> Tree:
        replicated: Tree = jax_utils.replicate(state, axis_name=AXIS)
        return replicated

    def mean(self, tree: Tree) -> Tree:
        # One all-reduce for everything: over a network (and gloo) it costs by the call far more than by the number.
        flat, unravel = ravel_pytree(tree)
        averaged: Tree = unravel(jax.lax.pmean(flat, AXIS))
        return averaged

    def compile(self, step: Callable[..., PyTree], donate_state: bool) -> Callable[..., PyTree]:
        compiled: Callable[..., PyTree] = jax.pmap(step, AXIS, donate_argnums=0 if donate_state else ())
        return compiled

    def put(self, array_LB: Any) -> Any:
        return array_LB if _on_cpu() else jax.device_put(array_LB, self._sharding)

    def on_host(self, tree: Tree) -> Tree:
        fetched: Tree = jax.tree.map(lambda array: np.asarray(array.addressable_data(0))[0], tree)
        return fetched


class MultiWorkerMirrored(Mirrored):
    """A replica on each device of each process that has joined (distribute.py): the same pmap over all of them.

    JAX exchanges by gloo between CPUs and by NCCL between GPUs. Each process must run the same steps in the same
    order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replicas_in_sync = jax.device_count()


def choose(name: Name, cluster: Cluster) -> Name:
    """The strategy that is meant, by its flag and by what the cluster has. "auto" alone, where that is for JAX to say.

    Raises:
        ClusterError: the flag asks for what the cluster cannot be.
    """
    if name == "auto":
        if cluster.parameter_servers:
            return "parameter-server"
        return "multi-worker-mirrored" if cluster.num_processes > 1 else "auto"
    if name == "parameter-server" and not cluster.parameter_servers:
        raise ClusterError("--strategy parameter-server takes a cluster with ps tasks: parameterServerCount.")
    if name in ("one-device", "mirrored") and (cluster.num_processes > 1 or cluster.parameter_servers):
        raise ClusterError(
            f"--strategy {name} is for one process, and TF_CONFIG has {cluster.num_processes} that train: leave "
            "--strategy out, or ask for no workers."
        )
    return name


def make_strategy(name: Name) -> Strategy:
    """Of this process alone, unless it has joined others. Call it after that: JAX's devices are then settled."""
    if name == "multi-worker-mirrored":
        return MultiWorkerMirrored()
    if name == "one-device" or (name != "mirrored" and jax.local_device_count() == 1):
        return OneDevice()
    return Mirrored()


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same, each made when the one before it is handed out: its transfer runs beside the step before it."""
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) == 2:
            yield waiting.pop(0)
    yield from waiting


def _on_cpu() -> bool:
    """Then a step takes an array from where it is: putting it elsewhere first would cost more than a short step."""
    return jax.default_backend() == "cpu"
