"""The training state, the position in training, and their serialization as a checkpoint."""

import hashlib
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainer.errors import TrainerUsageError
from trainer.models.model import Model

PyTree = Any
FORMAT = 1


class State(NamedTuple):
    """Parameters (a tree), statistics [S] and the optimizer's state, whose arrays are [P]; float32."""

    params: PyTree
    statistics: Any
    optimizer: optax.OptState


class TrainingPosition(NamedTuple):
    """Completed steps and epochs, and consumed examples of the current epoch's order (see data/sharding.py)."""

    steps: int = 0
    epochs: int = 0
    examples: int = 0


START = TrainingPosition()


class CheckpointError(TrainerUsageError):
    """The checkpoint in --job-dir is of another model or optimizer."""


def initial_state(model: Model, optimizer: optax.GradientTransformation, seed: int) -> State:
    """The state before the first step, on the host."""
    params, statistics = model.initial(seed)
    state: State = jax.device_get(State(model.params.unravel(params), statistics, optimizer.init(params)))
    return state


def checkpoint(model: Model, state: State, position: TrainingPosition) -> bytes:
    """Serialize everything that is needed to resume, on any number of replicas."""
    leaves = {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(state.optimizer))}
    data: bytes = flax.serialization.msgpack_serialize(
        {
            "format": FORMAT,
            "model": _layers_sha256(model),
            "position": position._asdict(),
            "params": model.params.ravel_on_host(state.params),
            "statistics": np.asarray(state.statistics),
            "optimizer": leaves,
        }
    )
    return data


def restore(
    model: Model, optimizer: optax.GradientTransformation, data: bytes
) -> tuple[State, TrainingPosition]:
    """Deserialize a checkpoint.

    Raises:
        CheckpointError: it is of another model or another optimizer.
    """
    saved = flax.serialization.msgpack_restore(data)
    if saved.get("format") != FORMAT or saved["model"] != _layers_sha256(model):
        raise CheckpointError("The checkpoint in --job-dir is of another model; choose another --job-dir.")
    # Only shapes: initializing parameters would take seconds.
    like = jax.eval_shape(optimizer.init, jax.ShapeDtypeStruct((model.params.size,), jnp.float32))
    leaves = [saved["optimizer"][str(number)] for number in range(len(saved["optimizer"]))]
    if [np.shape(leaf) for leaf in leaves] != [leaf.shape for leaf in jax.tree.leaves(like)]:
        raise CheckpointError(
            "The checkpoint in --job-dir is of another optimizer; choose another --job-dir."
        )
    optimizer_state = jax.tree.unflatten(jax.tree.structure(like), leaves)
    params = model.params.unravel(saved["params"])
    return State(params, saved["statistics"], optimizer_state), TrainingPosition(**saved["position"])


def parameters_sha256(state: State) -> str:
    """Hash of all parameters."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state.params):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _layers_sha256(model: Model) -> str:
    """Hash of the names and shapes of all parameters, i.e. of the layout of their vector."""
    return hashlib.sha256(f"{model.params.layout}{model.statistics.layout}".encode()).hexdigest()
