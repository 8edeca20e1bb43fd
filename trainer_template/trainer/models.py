"""The models by name, and the digits' network. ResNet-50 and the transformer have files of their own.

A name ends in its tensor's shape: B batch, H height, W width, C channels, T tokens, F features, K classes, P
parameters, S statistics; "..." is T for a model that answers at each token, and nothing for one that answers once.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.typing import DTypeLike
from numpy.typing import NDArray

from trainer.errors import UsageError
from trainer.resnet import ResNet
from trainer.transformer import Transformer

PyTree = Any


class ModelError(UsageError):
    """The model cannot take such examples."""


class Cnn(nn.Module):
    """3x3 convolutions, each after the first halving height and width, then two dense layers.

    Attributes:
        classes: number of labels.
        channels: output channels of each convolution.
        hidden: width of the hidden dense layer.
        dtype: what is computed in; the parameters are float32.
    """

    classes: int
    channels: Sequence[int] = (32, 64)
    hidden: int = 128
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images_BHWC: jax.Array, train: bool) -> jax.Array:  # noqa: ARG002 - every model is told
        """Images with values in [0, 1] -> logits [B, K]."""
        x_BHWC = images_BHWC
        for number, channels in enumerate(self.channels):
            stride = 2 if number else 1
            conv = nn.Conv(channels, kernel_size=(3, 3), strides=(stride, stride), dtype=self.dtype)
            x_BHWC = nn.relu(conv(x_BHWC))
        x_BF = x_BHWC.reshape(x_BHWC.shape[0], -1)
        x_BF = nn.relu(nn.Dense(self.hidden, dtype=self.dtype)(x_BF))
        logits_BK: jax.Array = nn.Dense(self.classes, dtype=self.dtype)(x_BF)
        return logits_BK


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a name stands for, and what suits it where no flag says otherwise.

    Attributes:
        make: (classes, dtype) -> the network.
        input_shape: of one example, where the data does not say it.
        classes: number of labels, where the data does not say it.
        tokens: examples are int32 tokens and each has a label; else images, and one label.
        optimizer: in steps.OPTIMIZERS.
        learning_rate: at the reference batch size.
        reference_batch_size: the global batch that the learning rate is for.
    """

    make: Callable[[int, DTypeLike], nn.Module]
    input_shape: tuple[int, ...]
    classes: int
    tokens: bool
    optimizer: str
    learning_rate: float
    reference_batch_size: int


KINDS: dict[str, Kind] = {
    "cnn": Kind(
        make=lambda classes, dtype: Cnn(classes, dtype=dtype),
        input_shape=(8, 8, 1),
        classes=10,
        tokens=False,
        optimizer="adam",
        learning_rate=0.002,
        reference_batch_size=16,
    ),
    # Momentum, warm-up and the rate of 0.1 for 256 images: Goyal et al., arXiv:1706.02677.
    "resnet50": Kind(
        make=lambda classes, dtype: ResNet(classes, dtype=dtype),
        input_shape=(224, 224, 3),
        classes=1000,
        tokens=False,
        optimizer="momentum",
        learning_rate=0.1,
        reference_batch_size=256,
    ),
    "transformer": Kind(
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
    """Of a step's examples; their ratios are means. float32 scalars."""

    loss: jax.Array
    correct: jax.Array
    examples: jax.Array


class Vector:
    """A tree of float32 arrays as one vector: [P] and back. So gradients are exchanged, and parameters saved.

    Much is simple with it: an exchange is one all-reduce, an optimizer's update a few operations however many layers
    there are, a parameter server's part a slice. Only the network itself takes the tree: XLA multiplies slowly by
    what it has to cut out of a vector first.
    """

    def __init__(self, shapes: PyTree) -> None:
        """The tree's arrays, or `jax.ShapeDtypeStruct`s like them."""
        leaves, structure = jax.tree.flatten(shapes)
        self._structure: Any = structure
        paths = jax.tree_util.tree_flatten_with_path(shapes)[0]
        # What is where in it.
        self.layout = [(jax.tree_util.keystr(path), leaf.shape) for path, leaf in paths]
        self._shapes = [leaf.shape for leaf in leaves]
        self._ends = [0]
        for shape in self._shapes:
            self._ends.append(self._ends[-1] + math.prod(shape))

    @property
    def size(self) -> int:
        return self._ends[-1]

    def join(self, tree: PyTree) -> jax.Array:
        leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate(leaves) if leaves else jnp.zeros(0, jnp.float32)

    def join_on_host(self, tree: PyTree) -> NDArray[np.float32]:
        """The same of NumPy arrays."""
        leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
        return np.concatenate(leaves, dtype=np.float32) if leaves else np.zeros(0, np.float32)

    def split(self, vector: Any) -> PyTree:
        """A JAX vector, or a NumPy one, whose leaves are then views of it."""
        pieces = zip(self._ends[:-1], self._ends[1:], self._shapes, strict=True)
        return self._structure.unflatten(vector[start:end].reshape(shape) for start, end, shape in pieces)


class Model:
    """A network: its parameters, and the statistics [S] that it keeps of its inputs (BatchNorm's).

    Attributes:
        name: in KINDS.
        input_shape: of one example.
        input_dtype: uint8 images are scaled to [0, 1] here, on the device; float32 ones, and tokens, are taken as
            they are.
        classes: number of labels.
        params, statistics: how the trees of both are vectors.
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
        """`network` is another than the name's own: a smaller one, say.

        Raises:
            ModelError: the model cannot take such examples.
        """
        self.name, self.classes = name, classes
        self.input_shape, self.input_dtype = input_shape, jnp.dtype(input_dtype)
        self._network = network or KINDS[name].make(classes, precision)
        if len(input_shape) != len(KINDS[name].input_shape) or KINDS[name].tokens != (
            self.input_dtype == jnp.int32
        ):
            takes = "int32 tokens [T]" if KINDS[name].tokens else "uint8 or float32 images [H, W, C]"
            raise ModelError(
                f"The model {name} takes {takes}; the data has {self.input_dtype} {list(input_shape)}. "
                "Choose another --model or other --data."
            )
        variables = jax.eval_shape(self._initial, jax.random.key(0, impl="rbg"))
        self.params = Vector(variables["params"])
        self.statistics = Vector(variables.get("batch_stats", {}))

    def initial(self, seed: int) -> tuple[jax.Array, jax.Array]:
        """Parameters [P] drawn by the seed, and the statistics [S] before the first example."""

        def drawn() -> tuple[jax.Array, jax.Array]:
            # This generator compiles in a third of the time that the default one needs.
            variables = self._initial(jax.random.key(seed, impl="rbg"))
            return self.params.join(variables["params"]), self.statistics.join(
                variables.get("batch_stats", {})
            )

        first: tuple[jax.Array, jax.Array] = jax.jit(drawn)()
        return first

    def first_statistics(self) -> NDArray[np.float32]:
        """The statistics [S] before the first example; they do not depend on the seed."""
        return np.asarray(self.initial(0)[1]) if self.statistics.size else np.zeros(0, np.float32)

    def train(
        self, params: PyTree, statistics_S: jax.Array, inputs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """(the tree of parameters, statistics, inputs [B, ...]) -> logits [B, ..., K] and the new statistics."""
        variables = {"params": params, "batch_stats": self.statistics.split(statistics_S)}
        logits, changed = self._network.apply(
            variables, self._scaled(inputs), train=True, mutable=["batch_stats"]
        )
        return logits.astype(jnp.float32), self.statistics.join(changed.get("batch_stats", {}))

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
    """Cross-entropy, right answers and examples, each summed with the weights.

    Args:
        logits: [B, ..., K]; with labels [B, ...], an example's loss is the mean over its tokens.
    """
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    each = tuple(range(1, labels.ndim))
    losses_B, correct_B = losses.mean(axis=each), correct.mean(axis=each)
    return Sums(jnp.sum(weights_B * losses_B), jnp.sum(weights_B * correct_B), jnp.sum(weights_B))
