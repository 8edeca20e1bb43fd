"""Low-rank adaptation (Hu et al., arXiv:2106.09685): --lora trains two small matrices beside each kernel.

The parameters are {"base": those of the network, "lora": {name of a kernel: {"a": [I, R], "b": [R, O]}}}. A kernel of
more axes is a matrix of its first and its last axes, where both are as large as can be.
"""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp

from trainyard_trainer.models.names import leaf_name
from trainyard_trainer.models.task import NetworkFunctions, TaskError

PyTree = Any


def with_lora(network: NetworkFunctions, rank: int, pattern: str) -> NetworkFunctions:
    """A network with matrices of a rank beside the kernels whose names match. `b` begins with zeros.

    Raises:
        TaskError: no kernel matches.
    """

    def init(key: jax.Array, inputs: jax.Array) -> tuple[PyTree, PyTree]:
        base, statistics = network.init(key, inputs)
        lora = {}
        for number, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(base)[0]):
            name = leaf_name(path)
            if leaf.ndim > 1 and re.search(pattern, name):
                size, out = _matrix(leaf.shape)
                a = jax.random.normal(jax.random.fold_in(key, number), (size, rank)) / math.sqrt(size)
                lora[name] = {"a": a, "b": jnp.zeros((rank, out))}
        if not lora:
            raise TaskError(f"--lora-on {pattern} matches no kernel of the network.")
        return {"base": base, "lora": lora}, statistics

    def apply(params: PyTree, statistics: PyTree, inputs: jax.Array, key: jax.Array | None) -> tuple[PyTree, PyTree]:
        return network.apply(merged(params), statistics, inputs, key)

    return NetworkFunctions(init, apply)


def merged(params: PyTree) -> PyTree:
    """The parameters of the network alone, with the matrices added."""

    def of_leaf(path: Any, leaf: Any) -> Any:
        own = params["lora"].get(leaf_name(path))
        return leaf if own is None else leaf + (own["a"] @ own["b"]).reshape(leaf.shape)

    return jax.tree_util.tree_map_with_path(of_leaf, params["base"])


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The sizes of a kernel's matrix: of the ways to divide its axes, the one nearest to a square."""
    splits = ((math.prod(shape[:axis]), math.prod(shape[axis:])) for axis in range(1, len(shape)))
    return min(splits, key=lambda sizes: abs(math.log(sizes[0] / sizes[1])))
