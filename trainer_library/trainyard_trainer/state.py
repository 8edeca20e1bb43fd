"""The training state, the position in training, and their arrays in a checkpoint."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from trainyard_trainer.errors import CheckpointError
from trainyard_trainer.models.model import Model

PyTree = Any


class State(NamedTuple):
    """Parameters (a tree), statistics [S], the optimizer's state for the tree, and the number of steps done."""

    params: PyTree
    statistics: Any
    optimizer: optax.OptState
    step: Any = np.int32(0)


class TrainingPosition(NamedTuple):
    """Completed steps and epochs, and consumed examples of the current epoch's order (see data/sharding.py).

    Attributes:
        best: the highest score of an evaluation; None before the first.
        best_epochs: completed epochs at that evaluation.
    """

    steps: int = 0
    epochs: int = 0
    examples: int = 0
    best: float | None = None
    best_epochs: int = 0


START = TrainingPosition()


def initial_state(model: Model, optimizer: optax.GradientTransformation, seed: int) -> State:
    """The state before the first step, on the host."""
    state: State = jax.device_get(jax.jit(lambda: _initial(model, optimizer, seed))())
    return state


def state_shapes(model: Model, optimizer: optax.GradientTransformation) -> State:
    """The shapes and types of the state's arrays (`jax.ShapeDtypeStruct`), without computing them."""
    shapes: State = jax.eval_shape(lambda: _initial(model, optimizer, 0))
    return shapes


def to_arrays(state: State) -> dict[str, NDArray[Any]]:
    """The arrays of a state on the host, by their paths in it: all that is needed to resume, on any replicas."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(shapes: State, arrays: Mapping[str, NDArray[Any]]) -> State:
    """The state of these shapes.

    Raises:
        CheckpointError: the arrays are of another model or another optimizer.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    names = {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}
    for kind, prefixes in (("model", (".params", ".statistics")), ("optimizer", (".optimizer",))):
        expected = {name: shape for name, shape in names.items() if name.startswith(prefixes)}
        if expected != {name: array.shape for name, array in arrays.items() if name.startswith(prefixes)}:
            raise CheckpointError(f"The checkpoint in --job-dir is of another {kind}; choose another --job-dir.")
    state: State = jax.tree.unflatten(structure, [arrays[name] for name in names])
    return state


def parameters_sha256(state: State) -> str:
    """Hash of all parameters."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state.params):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def layers_sha256(model: Model) -> str:
    """Hash of the names and shapes of all parameters, i.e. of the layout of their vector."""
    return hashlib.sha256(f"{model.params.layout}{model.statistics.layout}".encode()).hexdigest()


def _initial(model: Model, optimizer: optax.GradientTransformation, seed: int) -> State:
    params, statistics = model.initial(seed)
    tree = model.params.unravel(params)
    return State(tree, statistics, optimizer.init(tree), np.int32(0))
