"""The optimizer where parameter servers have a part of the parameters each.

A server has whole parameters, consecutive ones of the tree, so that whatever depends on a parameter's name, shape or
norm (a mask of the weight decay, labels, LAMB) is as in one process. The others are empty there. An optimizer that
needs all parameters at once, such as clipping by their global norm, would differ: it is refused.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.interpreters.partial_eval import dce_jaxpr

from trainyard_trainer.models.model import FlatTree, ModelError
from trainyard_trainer.parameter_servers.variables import Leaves

PyTree = Any

PROBED = 3  # elements at most along each axis, where an optimizer is tried
PROBED_GRADIENT = 1e4  # its size there, above which nobody would clip
PROBED_UPDATES = 2  # what an update leaves in the state has its effect in the next one


def on_part(optimizer: optax.GradientTransformation, params: FlatTree, leaves: slice) -> optax.GradientTransformation:
    """The optimizer for the vector of these leaves of the parameters."""

    def init(vector: Any) -> Any:
        return optimizer.init(params.part(vector, leaves))

    def update(gradient: Any, optimizer_state: Any, vector: Any = None) -> Any:
        trees = params.part(gradient, leaves), params.part(vector, leaves)
        updates, optimizer_state = optimizer.update(trees[0], optimizer_state, trees[1])
        return params.ravel(updates), optimizer_state

    return optax.GradientTransformation(init, update)


class DividedState:
    """Conversion between the optimizer's state, as in a checkpoint, and the servers' parts of it."""

    def __init__(self, optimizer: optax.GradientTransformation, params: FlatTree, servers: int) -> None:
        """Raises ModelError if the optimizer needs all parameters at once."""
        self._whole = jax.eval_shape(optimizer.init, params.shapes)
        try:
            self._parts = [
                jax.eval_shape(on_part(optimizer, params, leaves).init, _vector(params.elements(leaves)))
                for leaves in params.cut(servers)
            ]
            divisible = servers == 1 or (
                _is_independent(optimizer, params, servers) and _is_equal_by_parts(optimizer, params, servers)
            )
            cause = "as to clip by their global norm"
        except Exception as error:  # noqa: BLE001 - of the optimizer, where the others' parameters are empty
            divisible, cause = False, f"{type(error).__name__}: {error}"
        if not divisible:
            raise ModelError(
                f"The optimizer needs all parameters at once ({cause}), and each of {servers} parameter servers has "
                "some of them. Choose one parameter server, another optimizer, or training without parameter servers."
            )

    def divide(self, optimizer_state: Any) -> list[Leaves]:
        """The leaves of each server."""
        whole = [np.asarray(leaf) for leaf in jax.tree.leaves(optimizer_state)]
        return [
            [
                leaf if leaf.shape == like.shape else np.zeros(like.shape, like.dtype)
                for leaf, like in zip(whole, jax.tree.leaves(part), strict=True)
            ]
            for part in self._parts
        ]

    def join(self, leaves: Sequence[Leaves]) -> Any:
        """The inverse of `divide`."""
        shapes, structure = jax.tree.flatten(self._whole)
        by_leaf = zip(shapes, zip(*leaves, strict=True), strict=True)
        whole = [next(part for part in parts if np.shape(part) == like.shape) for like, parts in by_leaf]
        return jax.tree.unflatten(structure, whole)


def _vector(elements: slice) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((elements.stop - elements.start,), np.float32)


def _is_independent(optimizer: optax.GradientTransformation, params: FlatTree, servers: int) -> bool:
    """Whether the updates of each server's parameters are computed from these and their gradients alone."""

    def update(gradients: PyTree, values: PyTree) -> PyTree:
        optimizer_state = optimizer.init(values)
        for _ in range(PROBED_UPDATES):
            updates, optimizer_state = optimizer.update(gradients, optimizer_state, values)
        return updates

    jaxpr = jax.make_jaxpr(update)(params.shapes, params.shapes).jaxpr
    for leaves in params.cut(servers):
        own = np.zeros(len(params.layout), bool)
        own[leaves] = True
        _, used = dce_jaxpr(jaxpr, own.tolist())  # the inputs that these outputs depend on, by any way
        if np.any(used & ~np.tile(own, 2)):
            return False
    return True


def _is_equal_by_parts(optimizer: optax.GradientTransformation, params: FlatTree, servers: int) -> bool:
    """Compare an update of the whole with one by parts, on small parameters of the same names and axes."""
    small = FlatTree(
        jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct([min(size, PROBED) for size in leaf.shape], leaf.dtype), params.shapes
        )
    )
    random = np.random.default_rng(0)
    values, gradient = (random.normal(size=small.size).astype(np.float32) for _ in range(2))
    gradient *= PROBED_GRADIENT

    def update(leaves: slice) -> tuple[jax.Array, Any]:
        part, elements = on_part(optimizer, small, leaves), small.elements(leaves)
        updated: tuple[jax.Array, Any] = part.update(gradient[elements], part.init(values[elements]), values[elements])
        return updated

    cuts = params.cut(servers)
    (whole, whole_state), *parts = jax.jit(lambda: [update(slice(0, cuts[-1].stop)), *map(update, cuts)])()
    pairs = [(whole, jnp.concatenate([updates for updates, _ in parts]))]
    for _, state in parts:
        leaves = zip(jax.tree.leaves(whole_state), jax.tree.leaves(state), strict=True)
        pairs += [(leaf, other) for leaf, other in leaves if leaf.shape == other.shape]
    return all(np.allclose(leaf, other, rtol=1e-3, equal_nan=True) for leaf, other in pairs)
