"""Low-rank adaptation (Hu et al., arXiv:2106.09685): --lora trains two small matrices beside each kernel.

The parameters are {"base": those of the network, "lora": {name of a kernel: {"a": [I, R], "b": [R, O]}}}.

A layer of LAYERS computes x W + (x A) B, so that the gradient of the kernel, as large as W, is never computed. Any
other use of a kernel has W + A B, whose gradient is computed whole, and then multiplied by A and B. Such a kernel is a
matrix of its first and its last axes, divided where both are as large as can be.
"""

import logging
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from trainyard_trainer.errors import TaskError
from trainyard_trainer.models.names import leaf_name
from trainyard_trainer.models.task import NetworkFunctions

log = logging.getLogger("trainer")

PyTree = Any

SHOWN = 3  # names in a log line


def with_lora(network: NetworkFunctions, rank: int, pattern: str, dtype: DTypeLike = jnp.float32) -> NetworkFunctions:
    """A network with matrices of a rank beside the kernels whose names match. `b` begins with zeros.

    `dtype`: of the network's computation.

    Raises:
        TaskError: no kernel matches.
    """
    logged: set[str] = set()

    def init(key: jax.Array, inputs: jax.Array) -> tuple[PyTree, PyTree]:
        used: list[tuple[Any, int]] = []  # kernels of layers, and how many axes are of the inputs

        def note(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
            outputs = call(*args, **kwargs)
            if (found := _kernel_of(context)) is not None:
                used.append(found)
            return outputs

        with nn.intercept_methods(note):
            base, statistics = network.init(key, inputs)
        lora = {}
        for number, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(base)[0]):
            name = leaf_name(path)
            if leaf.ndim > 1 and re.search(pattern, name):
                axes = next((axes for kernel, axes in used if kernel is leaf), _middle(leaf.shape))
                size, out = math.prod(leaf.shape[:axes]), math.prod(leaf.shape[axes:])
                a = jax.random.normal(jax.random.fold_in(key, number), (size, rank)) / math.sqrt(size)
                lora[name] = {"a": a, "b": jnp.zeros((rank, out))}
        if not lora:
            raise TaskError(f"--lora-on {pattern} matches no kernel of the network.")
        return {"base": base, "lora": lora}, statistics

    def apply(params: PyTree, statistics: PyTree, inputs: jax.Array, key: jax.Array | None) -> tuple[PyTree, PyTree]:
        adapted = _Adapted(params, dtype)
        with nn.intercept_methods(adapted.intercept):
            result: tuple[PyTree, PyTree] = network.apply(adapted.merged, statistics, inputs, key)
        if whole := adapted.whole() - logged:
            logged.update(whole)
            shown = ", ".join(sorted(whole)[:SHOWN]) + (", ..." if len(whole) > SHOWN else "")
            log.info(
                "--lora computes the whole gradient of %d kernels (%s), which takes more memory: they are not used by "
                "nn.Dense, nn.DenseGeneral or nn.Conv alone, or these are in nn.remat, nn.scan or the like.",
                len(whole), shown,
            )  # fmt: skip
        return result

    return NetworkFunctions(init, apply)


def merged(params: PyTree) -> PyTree:
    """The parameters of the network alone, with the matrices added."""

    def of_leaf(path: Any, leaf: Any) -> Any:
        own = params["lora"].get(leaf_name(path))
        return leaf if own is None else leaf + (own["a"] @ own["b"]).reshape(leaf.shape)

    return jax.tree_util.tree_map_with_path(of_leaf, params["base"])


class _Adapted:
    """The kernels of a network during one call of it.

    Attributes:
        merged: parameters for the network. A layer that gets one of these very arrays as its kernel has nothing done to
            it on the way, so what the layer computes may be computed in another way. Whatever else is done with
            it has the right value and gradient.
    """

    def __init__(self, params: PyTree, dtype: DTypeLike) -> None:
        def cast(leaf: Any) -> Any:
            return leaf.astype(dtype) if leaf.dtype == jnp.float32 else leaf

        base = {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(params["base"])[0]}
        with_matrices = merged(params)

        def of_leaf(path: Any, leaf: Any) -> Any:
            return cast(leaf) if leaf_name(path) in params["lora"] else leaf

        self.merged = jax.tree_util.tree_map_with_path(of_leaf, with_matrices)
        self._kernels: dict[str, tuple[Any, dict[str, Any]]] = {}
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.merged)[0]:
            if (name := leaf_name(path)) in params["lora"]:
                self._kernels[name] = leaf, jax.tree.map(cast, {"w": base[name], **params["lora"][name]})
        self._by_layers: set[str] = set()

    def whole(self) -> set[str]:
        """Names of kernels that no layer of LAYERS has used so far."""
        return self._kernels.keys() - self._by_layers

    def intercept(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        context: nn.module.InterceptorContext,
    ) -> Any:
        """Compute a layer's output by its kernel and the two matrices."""
        found = _kernel_of(context)
        if found is None:
            return call(*args, **kwargs)
        kernel, axes = found
        name = next((name for name, (leaf, _) in self._kernels.items() if leaf is kernel), None)
        if name is None or math.prod(kernel.shape[:axes]) != len(self._kernels[name][1]["a"]):
            return call(*args, **kwargs)
        layer: Any = context.module
        own = self._kernels[name][1]
        self._by_layers.add(name)
        variables = {"kernel": own["w"]}
        if layer.use_bias:
            variables["bias"] = layer.get_variable("params", "bias")
        outputs: Any = layer.clone(parent=None).apply({"params": variables}, *args, **kwargs)
        # The same layer with R features.
        rank = own["a"].shape[1]
        narrow = layer.clone(parent=None, features=rank, use_bias=False)
        low: Any = narrow.apply({"params": {"kernel": own["a"].reshape(*kernel.shape[:axes], rank)}}, *args, **kwargs)
        added = jnp.matmul(low, own["b"].astype(low.dtype), precision=layer.precision)
        return outputs + added.reshape(outputs.shape)


def _kernel_of(context: nn.module.InterceptorContext) -> tuple[Any, int] | None:
    """The kernel of a call of a layer of LAYERS, and how many of its axes, the first ones, are of the inputs."""
    layer: Any = context.module
    inputs = LAYERS.get(type(layer))
    if inputs is None or context.method_name != "__call__" or not layer.has_variable("params", "kernel"):
        return None
    kernel = layer.get_variable("params", "kernel")
    axes = inputs(layer, kernel.ndim) if isinstance(kernel, jax.Array) else None
    return None if axes is None else (kernel, axes)


def _of_dense(layer: Any, _axes: int) -> int | None:
    return 1 if layer.dot_general is None and layer.dot_general_cls is None else None


def _of_dense_general(layer: Any, axes: int) -> int | None:
    features = 1 if isinstance(layer.features, int) else len(layer.features)
    plain = layer.dot_general is None and layer.dot_general_cls is None and not layer.batch_dims
    return axes - features if plain else None


def _of_conv(layer: Any, axes: int) -> int | None:
    is_custom = layer.conv_general_dilated is not None or layer.conv_general_dilated_cls is not None
    return None if is_custom or layer.feature_group_count != 1 or layer.mask is not None else axes - 1


LAYERS: dict[type, Callable[[Any, int], int | None]] = {
    nn.Dense: _of_dense,
    nn.DenseGeneral: _of_dense_general,
    nn.Conv: _of_conv,
}
"""Layer -> (it, the number of its kernel's axes) -> how many of them are of the inputs; None: it computes otherwise."""


def _middle(shape: tuple[int, ...]) -> int:
    """The number of first axes that are, of all ways to divide the axes of a kernel, the nearest to a square."""
    return min(range(1, len(shape)), key=lambda axis: abs(math.log(math.prod(shape[:axis]) / math.prod(shape[axis:]))))
