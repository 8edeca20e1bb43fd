"""The table of models, the interface of a model, and its loss.

A name ends in its tensor's shape: B batch, K classes, P parameters, S statistics. In [B, ..., K], "..." is the token
axis of a language model and empty for a classifier.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.typing import DTypeLike
from numpy.typing import NDArray

from trainer.errors import TrainerUsageError
from trainer.models.cnn import Cnn
from trainer.models.resnet import ResNet
from trainer.models.transformer import Transformer

PyTree = Any


class ModelError(TrainerUsageError):
    """The model does not accept examples of this shape or type."""


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A value of --model: its network and the defaults of other flags.

    Attributes:
        make: (classes, dtype) -> the network.
        input_shape: of one example, if the data does not define it.
        classes: number of labels, if the data does not define it.
        tokens: inputs are int32 tokens with a label each; otherwise images with one label.
        optimizer: a key of steps.OPTIMIZERS.
        learning_rate: for a global batch of `reference_batch_size`.
    """

    make: Callable[[int, DTypeLike], nn.Module]
    input_shape: tuple[int, ...]
    classes: int
    tokens: bool
    optimizer: str
    learning_rate: float
    reference_batch_size: int


MODELS: dict[str, ModelSpec] = {
    "cnn": ModelSpec(
        make=lambda classes, dtype: Cnn(classes, dtype=dtype),
        input_shape=(8, 8, 1),
        classes=10,
        tokens=False,
        optimizer="adam",
        learning_rate=0.002,
        reference_batch_size=16,
    ),
    # Momentum, warm-up and the rate of 0.1 for 256 images: Goyal et al., arXiv:1706.02677.
    "resnet50": ModelSpec(
        make=lambda classes, dtype: ResNet(classes, dtype=dtype),
        input_shape=(224, 224, 3),
        classes=1000,
        tokens=False,
        optimizer="momentum",
        learning_rate=0.1,
        reference_batch_size=256,
    ),
    "transformer": ModelSpec(
        make=lambda classes, dtype: Transformer(classes, dtype=dtype),
        input_shape=(64,),
        classes=256,
        tokens=True,
        optimizer="adam",
        learning_rate=0.001,
        reference_batch_size=16,
    ),
}


class Sums(NamedTuple):
    """Sums over the examples of a step, float32 scalars; divided by `examples` they are means."""

    loss: jax.Array
    correct: jax.Array
    examples: jax.Array


class FlatTree:
    """Conversion between a tree of float32 arrays and one vector [P].

    With a vector, an all-reduce is one operation, an optimizer's update is a few operations, and a parameter server
    holds a slice. The network itself gets the tree, because XLA multiplies slowly with slices of a vector.
    """

    def __init__(self, shapes: PyTree) -> None:
        """`shapes`: the tree's arrays or `jax.ShapeDtypeStruct`s."""
        leaves, structure = jax.tree.flatten(shapes)
        self._structure: Any = structure
        paths = jax.tree_util.tree_flatten_with_path(shapes)[0]
        self.layout = [(jax.tree_util.keystr(path), leaf.shape) for path, leaf in paths]
        self._shapes = [leaf.shape for leaf in leaves]
        self._ends = [0]
        for shape in self._shapes:
            self._ends.append(self._ends[-1] + math.prod(shape))

    @property
    def size(self) -> int:
        return self._ends[-1]

    def ravel(self, tree: PyTree) -> jax.Array:
        leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate(leaves) if leaves else jnp.zeros(0, jnp.float32)

    def ravel_on_host(self, tree: PyTree) -> NDArray[np.float32]:
        """`ravel` for NumPy arrays."""
        leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
        return np.concatenate(leaves, dtype=np.float32) if leaves else np.zeros(0, np.float32)

    def unravel(self, vector: Any) -> PyTree:
        """The tree of a JAX or NumPy vector; the leaves of a NumPy vector are views."""
        pieces = zip(self._ends[:-1], self._ends[1:], self._shapes, strict=True)
        return self._structure.unflatten(vector[start:end].reshape(shape) for start, end, shape in pieces)


class Model:
    """A network with its parameters and running statistics [S] (BatchNorm's).

    Attributes:
        name: a key of MODELS.
        input_shape: of one example.
        input_dtype: uint8 images are scaled to [0, 1] on the device; float32 images and tokens are used unchanged.
        classes: number of labels.
        params, statistics: convert both trees to vectors.
    """

    def __init__(
        self,
        name: str,
        input_shape: tuple[int, ...],
        input_dtype: DTypeLike,
        classes: int,
        precision: DTypeLike = jnp.float32,
        network: nn.Module | None = None,
    ) -> None:
        """`network` replaces the named model's own, e.g. by a smaller one.

        Raises:
            ModelError: the model does not accept such examples.
        """
        self.name, self.classes = name, classes
        self.input_shape, self.input_dtype = input_shape, jnp.dtype(input_dtype)
        self._network = network or MODELS[name].make(classes, precision)
        if len(input_shape) != len(MODELS[name].input_shape) or MODELS[name].tokens != (
            self.input_dtype == jnp.int32
        ):
            accepted = "int32 tokens [T]" if MODELS[name].tokens else "uint8 or float32 images [H, W, C]"
            raise ModelError(
                f"The model {name} takes {accepted}; the data has {self.input_dtype} {list(input_shape)}. "
                "Choose another --model or other --data."
            )
        variables = jax.eval_shape(self._initial, jax.random.key(0, impl="rbg"))
        self.params = FlatTree(variables["params"])
        self.statistics = FlatTree(variables.get("batch_stats", {}))

    def initial(self, seed: int) -> tuple[jax.Array, jax.Array]:
        """Random parameters [P] of a seed, and the initial statistics [S]."""

        def init() -> tuple[jax.Array, jax.Array]:
            # rbg compiles in a third of the time of the default generator.
            variables = self._initial(jax.random.key(seed, impl="rbg"))
            return self.params.ravel(variables["params"]), self.statistics.ravel(
                variables.get("batch_stats", {})
            )

        first: tuple[jax.Array, jax.Array] = jax.jit(init)()
        return first

    def initial_statistics(self) -> NDArray[np.float32]:
        """The initial statistics [S]; they do not depend on the seed."""
        return np.asarray(self.initial(0)[1]) if self.statistics.size else np.zeros(0, np.float32)

    def train(
        self, params: PyTree, statistics_S: jax.Array, inputs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """(the tree of parameters, statistics, inputs [B, ...]) -> logits [B, ..., K] and the new statistics."""
        variables = {"params": params, "batch_stats": self.statistics.unravel(statistics_S)}
        logits, changed = self._network.apply(
            variables, self._scaled(inputs), train=True, mutable=["batch_stats"]
        )
        return logits.astype(jnp.float32), self.statistics.ravel(changed.get("batch_stats", {}))

    def infer(self, params: PyTree, statistics: PyTree, inputs: jax.Array) -> jax.Array:
        """(trees of parameters and statistics, inputs [B, ...]) -> logits [B, ..., K], float32."""
        variables = {"params": params, "batch_stats": statistics}
        logits: Any = self._network.apply(variables, self._scaled(inputs), train=False)
        return logits.astype(jnp.float32)  # type: ignore[no-any-return]

    def _initial(self, key: jax.Array) -> PyTree:
        inputs = jnp.zeros((1, *self.input_shape), self.input_dtype)
        return self._network.init(key, self._scaled(inputs), train=False)

    def _scaled(self, inputs: jax.Array) -> jax.Array:
        return inputs.astype(jnp.float32) / 255 if self.input_dtype == jnp.uint8 else inputs


def measure(logits: jax.Array, labels: jax.Array, weights_B: jax.Array) -> Sums:
    """Weighted sums of the cross-entropy, the correct predictions and the examples.

    Args:
        logits: [B, ..., K].
        labels: [B, ...]; the loss of an example is the mean over its tokens.
    """
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    each = tuple(range(1, labels.ndim))
    losses_B, correct_B = losses.mean(axis=each), correct.mean(axis=each)
    return Sums(jnp.sum(weights_B * losses_B), jnp.sum(weights_B * correct_B), jnp.sum(weights_B))
