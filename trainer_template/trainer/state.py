"""What a step changes, how far training is, and both as a checkpoint's bytes."""

import hashlib
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainer.errors import UsageError
from trainer.models import Model

PyTree = Any
FORMAT = 1


class State(NamedTuple):
    """float32: the tree of parameters, statistics [S], and what the optimizer keeps of each parameter [P]."""

    params: PyTree
    statistics: Any
    optimizer: optax.OptState


class Position(NamedTuple):
    """How much of the training is done.

    `examples` are those of the epoch under way: so much of its order has been gone through (see sharding.py).
    """

    steps: int = 0
    epochs: int = 0
    examples: int = 0


class CheckpointError(UsageError):
    """What lies in --job-dir is no checkpoint of this training."""


def first_state(model: Model, optimizer: optax.GradientTransformation, seed: int) -> State:
    """Before the first step, on the host."""
    params, statistics = model.initial(seed)
    state: State = jax.device_get(State(model.params.split(params), statistics, optimizer.init(params)))
    return state


def checkpoint(model: Model, state: State, position: Position) -> bytes:
    """All that it takes to go on from here, on any number of replicas."""
    leaves = {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(state.optimizer))}
    data: bytes = flax.serialization.msgpack_serialize(
        {
            "format": FORMAT,
            "model": _layers_sha256(model),
            "position": position._asdict(),
            "params": model.params.join_on_host(state.params),
            "statistics": np.asarray(state.statistics),
            "optimizer": leaves,
        }
    )
    return data


def restore(model: Model, optimizer: optax.GradientTransformation, data: bytes) -> tuple[State, Position]:
    """What `checkpoint` wrote.

    Raises:
        CheckpointError: it is of another model or another optimizer.
    """
    saved = flax.serialization.msgpack_restore(data)
    if saved.get("format") != FORMAT or saved["model"] != _layers_sha256(model):
        raise CheckpointError("The checkpoint in --job-dir is of another model; choose another --job-dir.")
    # Shapes alone: drawing real parameters would take seconds.
    like = jax.eval_shape(optimizer.init, jax.ShapeDtypeStruct((model.params.size,), jnp.float32))
    leaves = [saved["optimizer"][str(number)] for number in range(len(saved["optimizer"]))]
    if [np.shape(leaf) for leaf in leaves] != [leaf.shape for leaf in jax.tree.leaves(like)]:
        raise CheckpointError(
            "The checkpoint in --job-dir is of another optimizer; choose another --job-dir."
        )
    optimizer_state = jax.tree.unflatten(jax.tree.structure(like), leaves)
    params = model.params.split(saved["params"])
    return State(params, saved["statistics"], optimizer_state), Position(**saved["position"])


def parameters_sha256(state: State) -> str:
    """One hash of all parameters: equal where they are, bit for bit."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state.params):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _layers_sha256(model: Model) -> str:
    """Names and shapes of all parameters: the order of their vector."""
    return hashlib.sha256(f"{model.params.layout}{model.statistics.layout}".encode()).hexdigest()
