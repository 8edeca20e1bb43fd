"""The training state, the position in training, and their arrays in a checkpoint."""

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from trainyard_trainer.errors import CheckpointError
from trainyard_trainer.models.model import Model
from trainyard_trainer.models.names import names
from trainyard_trainer.output.parts import Piece, placed_name

PyTree = Any
Bounds = tuple[tuple[int, int], ...]  # of a part, on each axis


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


def initial(
    model: Model, optimizer: optax.GradientTransformation, seed: int, loaded: Mapping[str, Any] | None = None
) -> State:
    """The state before the first step, to be compiled. `loaded`: values by their names, in place of random ones."""
    params, statistics = model.initial(seed)
    trees = {"params": model.params.unravel(params), "batch_stats": model.statistics.unravel(statistics)}
    trees = jax.tree.map(lambda name, leaf: (loaded or {}).get(name, leaf), names(trees), trees)
    return State(
        trees["params"], model.statistics.ravel(trees["batch_stats"]), optimizer.init(trees["params"]), np.int32(0)
    )


def initial_state(model: Model, optimizer: optax.GradientTransformation, seed: int) -> State:
    """The state before the first step, on the host."""
    state: State = jax.device_get(jax.jit(lambda: initial(model, optimizer, seed))())
    return state


def state_shapes(model: Model, optimizer: optax.GradientTransformation) -> State:
    """The shapes and types of the state's arrays (`jax.ShapeDtypeStruct`), without computing them."""
    shapes: State = jax.eval_shape(lambda: initial(model, optimizer, 0))
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
    expected_shapes = {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}
    for kind, prefixes in (("model", (".params", ".statistics")), ("optimizer", (".optimizer",))):
        expected = {name: shape for name, shape in expected_shapes.items() if name.startswith(prefixes)}
        if expected != {name: array.shape for name, array in arrays.items() if name.startswith(prefixes)}:
            raise CheckpointError(f"The checkpoint in --job-dir is of another {kind}; choose another --job-dir.")
    state: State = jax.tree.unflatten(structure, [arrays[name] for name in expected_shapes])
    return state


def to_pieces(state: State) -> dict[str, NDArray[Any]]:
    """The parts of a divided state that this process is to save, on the host, by name and place: see parts.py."""
    pieces = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:  # of several copies, the first
                starts = [part.start or 0 for part in shard.index]
                pieces[placed_name(jax.tree_util.keystr(path), starts)] = np.asarray(shard.data)
    return pieces


def from_pieces(shapes: State, shardings: State, pieces: Iterable[Piece]) -> State:
    """The state on the devices, of which this process keeps its own parts alone.

    Raises:
        CheckpointError: the pieces are of another model or another optimizer.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    layouts = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    placed = dict(zip(layouts, jax.tree.leaves(shardings), strict=True))
    wanted = {name: _own_parts(leaf, placed[name]) for name, leaf in layouts.items()}
    filled = dict.fromkeys(wanted, 0)
    for name, starts, array in pieces:
        if name not in wanted or array.ndim != len(starts):
            raise _other_state()
        filled[name] += array.size
        for index, part in wanted[name].items():
            overlap = [
                (max(a, start), min(b, start + size))
                for (a, b), start, size in zip(index, starts, array.shape, strict=True)
            ]
            if all(a < b for a, b in overlap):
                into = tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(overlap, index, strict=True))
                out_of = tuple(slice(a - start, b - start) for (a, b), start in zip(overlap, starts, strict=True))
                part[into] = array[out_of]
    if any(filled[name] != math.prod(leaf.shape) for name, leaf in layouts.items()):
        raise _other_state()
    arrays = [
        jax.make_array_from_callback(leaf.shape, placed[name], functools.partial(_part, wanted[name], leaf.shape))
        for name, leaf in layouts.items()
    ]
    state: State = jax.tree.unflatten(structure, arrays)
    return state


def _own_parts(leaf: Any, sharding: Any) -> dict[Bounds, NDArray[Any]]:
    """Arrays for the parts of a leaf that devices of this process have, by their place."""
    indices = sharding.addressable_devices_indices_map(leaf.shape).values()
    bounds = {_bounds(index, leaf.shape) for index in indices}
    return {index: np.zeros([b - a for a, b in index], leaf.dtype) for index in bounds}


def _other_state() -> CheckpointError:
    return CheckpointError("The checkpoint in --job-dir is of another model or optimizer; choose another --job-dir.")


def _part(parts: Mapping[Bounds, NDArray[Any]], shape: tuple[int, ...], index: Any) -> NDArray[Any]:
    return parts[_bounds(index, shape)]


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    return tuple((part.indices(size)[0], part.indices(size)[1]) for part, size in zip(index, shape, strict=True))


def parameters_sha256(params: PyTree) -> str:
    """Hash of all parameters, which are on the host."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def layers_sha256(model: Model) -> str:
    """Hash of the names and shapes of all parameters, i.e. of the layout of their vector."""
    return hashlib.sha256(f"{model.params.layout}{model.statistics.layout}".encode()).hexdigest()
