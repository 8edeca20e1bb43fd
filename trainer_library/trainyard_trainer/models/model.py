"""The models of --model, and a task's network with its parameters as the training step uses it.

A name ends in its tensor's shape: B batch, K classes, P parameters, S statistics, M metrics.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.typing import DTypeLike

from trainyard_trainer.data.datasets import Layouts
from trainyard_trainer.data.packing import unpack
from trainyard_trainer.errors import TaskError, TrainerUsageError
from trainyard_trainer.models import gpt2
from trainyard_trainer.models.checks import check_functions, check_pair, explained, label, shapes
from trainyard_trainer.models.cnn import Cnn
from trainyard_trainer.models.kinds import kind
from trainyard_trainer.models.resnet import ResNet
from trainyard_trainer.models.task import (
    DataSpec,
    NetworkFunctions,
    TrainingTask,
    accuracy,
    cross_entropy,
    linen,
    top_5,
)
from trainyard_trainer.models.transformer import TENSOR_RULES, Transformer

PyTree = Any

MANY = 100  # classes, of which the first five count too


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
        context: the most tokens of an example; 0: any number.
    """

    make: Callable[[int, DTypeLike], nn.Module]
    input_shape: tuple[int, ...]
    classes: int
    tokens: bool
    optimizer: str
    learning_rate: float
    reference_batch_size: int
    context: int = 0


def gpt2_spec(sizes: gpt2.Sizes) -> ModelSpec:
    """The value gpt2 of --model, in these sizes."""
    return ModelSpec(
        make=functools.partial(gpt2.network, sizes),
        input_shape=(sizes.context,),
        classes=sizes.vocabulary,
        tokens=True,
        optimizer="adam",
        learning_rate=0.0006,
        reference_batch_size=512,
        context=sizes.context,
    )


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
    "gpt2": gpt2_spec(gpt2.Sizes()),
}


def built_in(
    name: str,
    precision: DTypeLike = jnp.float32,
    network: nn.Module | None = None,
    optimizer: Callable[[optax.ScalarOrSchedule], optax.GradientTransformation] | None = None,
    spec: ModelSpec | None = None,
) -> TrainingTask:
    """The task of a value of --model. `network` replaces its own, e.g. by a smaller one; `spec` that of MODELS."""
    spec = spec or MODELS[name]

    def functions(data: DataSpec) -> NetworkFunctions:
        if len(data.input_shape) != len(spec.input_shape) or spec.tokens != (data.input_dtype == jnp.int32):
            accepted = "int32 tokens [T]" if spec.tokens else "uint8 or float32 images [H, W, C]"
            raise ModelError(
                f"The model {name} takes {accepted}; the data has {data.input_dtype} {list(data.input_shape)}. "
                "Choose another --model or other --data."
            )
        if spec.context and data.input_shape[0] > spec.context:
            raise ModelError(
                f"The model {name} takes at most {spec.context} tokens; the data has {data.input_shape[0]}. Make the "
                f"examples shorter: of text by --input-shape {spec.context}, or fewer."
            )
        return linen(network or spec.make(data.classes, precision))

    metrics = {"accuracy": accuracy} | ({"top_5": top_5} if spec.classes > MANY and not spec.tokens else {})
    return TrainingTask(
        functions, metrics=metrics, optimizer=optimizer, learning_rate=spec.learning_rate, name=name,
        classes=spec.classes, reference_batch_size=spec.reference_batch_size, input_shape=spec.input_shape,
        sharding=TENSOR_RULES if spec.tokens else (),
    )  # fmt: skip


class FlatTree:
    """Conversion between a tree of float32 arrays and one vector [P].

    The network itself gets the tree, because XLA is slow to multiply with slices of a vector.
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

    @property
    def shapes(self) -> PyTree:
        """The tree, of `jax.ShapeDtypeStruct`s."""
        return self._structure.unflatten(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in self._shapes)

    def ravel(self, tree: PyTree) -> jax.Array:
        leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate(leaves) if leaves else jnp.zeros(0, jnp.float32)

    def unravel(self, vector: Any) -> PyTree:
        """The tree of a JAX or NumPy vector; the leaves of a NumPy vector are views."""
        pieces = zip(self._ends[:-1], self._ends[1:], self._shapes, strict=True)
        return self._structure.unflatten(vector[start:end].reshape(shape) for start, end, shape in pieces)


class Model:
    """A task's network for some data, with the layout of its parameters and running statistics [S] (BatchNorm's).

    Attributes:
        input_shape: of one example.
        input_dtype: uint8 images are scaled to [0, 1] on the device; all else is used unchanged.
        classes: number of labels; 0 if labels are not classes.
        params, statistics: convert both trees to vectors.
        network: its functions.
        layouts: of inputs and labels that are several arrays: see data/packing.py.
    """

    def __init__(
        self,
        task: TrainingTask,
        input_shape: tuple[int, ...],
        input_dtype: DTypeLike,
        classes: int,
        layouts: Layouts = ((), ()),
    ) -> None:
        """Raises ModelError if the model does not accept such examples, TaskError if the network is none."""
        self.name, self.task, self.classes = task.name, task, classes
        self.input_shape, self.input_dtype, self.layouts = input_shape, jnp.dtype(input_dtype), layouts
        network: Any = task.network  # mypy takes a named tuple for callable
        if not isinstance(network, NetworkFunctions):
            network = network(self._data_spec())
        check_functions(task, network)
        self.network: NetworkFunctions = network
        with explained(f"The {label(task)}: its network cannot be initialized for inputs of {self._inputs_text}."):
            params, statistics = jax.eval_shape(self._initial, jax.random.key(0, impl="rbg"))
            if not jax.tree.leaves(params):
                raise TaskError(f"The {label(task)}: its network has no parameters, so there is nothing to train.")
        self.params = FlatTree(params)
        self.statistics = FlatTree(statistics)

    @functools.cached_property
    def label_limit(self) -> int:
        """The number that every label must be below; 0 if none is: of a loss or weights of the task's own."""
        loss = self.task.loss
        if self.layouts[1]:
            return 0
        if (
            self.task.weights is not None
            or (loss.func if isinstance(loss, functools.partial) else loss) is not cross_entropy
        ):
            return self.classes
        outputs: Any = self._outputs
        if not hasattr(outputs, "shape") or len(outputs.shape) < 2:
            raise TaskError(
                f"The {label(self.task)}: the cross entropy of classes, which is its loss, takes outputs [B, ..., K], "
                f"one for each class; those of its network are {shapes(outputs)}. Give the task another `loss`."
            )
        classes: int = outputs.shape[-1]
        return min(self.classes or classes, classes)

    def outputs_for(self, label_shape: tuple[int, ...]) -> int:
        """The number of outputs for each label of this shape, if the outputs have one axis more; else 0."""
        shape: tuple[int, ...] = getattr(self._outputs, "shape", ())
        return shape[-1] if shape[1:-1] == label_shape and len(shape) > 1 else 0

    @functools.cached_property
    def _outputs(self) -> PyTree:
        """The outputs for one example, as `jax.ShapeDtypeStruct`s."""
        inputs = jax.ShapeDtypeStruct((1, *self.input_shape), self.input_dtype)
        return jax.eval_shape(self.infer, self.params.shapes, self.statistics.shapes, inputs)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the sums of `measure`, without the last."""
        return ("loss", *self.task.metrics)

    def initial(self, seed: int) -> tuple[jax.Array, jax.Array]:
        """Random parameters [P] of a seed, and the initial statistics [S]."""

        def init() -> tuple[jax.Array, jax.Array]:
            # rbg compiles in a third of the time of the default generator.
            params, statistics = self._initial(jax.random.key(seed, impl="rbg"))
            return self.params.ravel(params), self.statistics.ravel(statistics)

        first: tuple[jax.Array, jax.Array] = jax.jit(init)()
        return first

    def train(
        self, params: PyTree, statistics_S: jax.Array, inputs: jax.Array, key: jax.Array, share: Any = None
    ) -> tuple[PyTree, jax.Array]:
        """(the tree of parameters, statistics, inputs [B, ...], key) -> outputs [B, ...] and the new statistics.

        `share`: of each input in a mixture with another (mixup: Zhang et al., arXiv:1710.09412); None: no mixture.
        """
        scaled = self._scaled(inputs)
        if share is not None:
            scaled = jax.tree.map(lambda array: _mixed(array, share), scaled)
        outputs, changed = self._apply(params, self.statistics.unravel(statistics_S), scaled, key)
        return _float32(outputs), self.statistics.ravel(changed)

    def infer(self, params: PyTree, statistics: PyTree, inputs: Any) -> PyTree:
        """(trees of parameters and statistics, inputs [B, ...]) -> outputs [B, ...], float32.

        Inputs of several arrays are packed, or a dict.
        """
        return _float32(self._apply(params, statistics, self._scaled(inputs), None)[0])

    def measure(self, outputs: PyTree, labels: Any, weights_B: jax.Array) -> jax.Array:
        """Weighted sums [M + 2] over the examples: of the losses, of each metric, and of the weights.

        Raises:
            TaskError: the loss or a metric has not one value for each example.
        """
        if self.layouts[1]:
            labels = unpack(labels, self.layouts[1])
        values = [
            self._each(name, function, weights_B.shape, outputs=outputs, labels=labels)
            for name, function in (("loss", self.task.loss), *self.task.metrics.items())
        ]
        if self.task.weights is not None:
            weights_B = weights_B * self._each("weights", self.task.weights, weights_B.shape, labels=labels)
        return jnp.stack([*(jnp.sum(weights_B * value_B) for value_B in values), jnp.sum(weights_B)])

    def _each(self, name: str, function: Callable[..., Any], shape: tuple[int, ...], **arguments: PyTree) -> Any:
        """The values of a function that has one for each example; another shape would be broadcast, and trained on."""
        given = " and ".join(f"{what} {shapes(tree)}" for what, tree in arguments.items())
        with explained(f"The {label(self.task)}: {name} cannot be computed of {given}."):
            value = function(*arguments.values())
        if not hasattr(value, "shape") or value.shape != shape:
            has = f"has the shape {list(value.shape)}" if hasattr(value, "shape") else f"is {kind(value)}"
            mean = " Leave the mean or sum over examples out." if getattr(value, "shape", None) == () else ""
            raise TaskError(
                f"The {label(self.task)}: {name} {has} for {shape[0]} examples; it must have one value for each: "
                f"{list(shape)}.{mean} It was computed of {given}."
            )
        return value

    def _apply(self, params: PyTree, statistics: PyTree, inputs: Any, key: jax.Array | None) -> tuple[PyTree, PyTree]:
        with explained(f"The {label(self.task)}: its network cannot be applied to inputs of {self._inputs_text}."):
            result = self.network.apply(params, statistics, inputs, key)
        check_pair(self.task, "apply", result, "outputs")
        return result

    def _initial(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        inputs = jnp.zeros((1, *self.input_shape), self.input_dtype)
        result = self.network.init(key, self._scaled(inputs))
        check_pair(self.task, "init", result, "parameters")
        return result

    @property
    def _inputs_text(self) -> str:
        """Shapes of a batch of inputs as the network gets them, for messages."""
        return shapes(jax.eval_shape(self._scaled, jax.ShapeDtypeStruct((1, *self.input_shape), self.input_dtype)))

    def _scaled(self, inputs: Any) -> Any:
        if self.layouts[0] and not isinstance(inputs, dict):
            inputs = unpack(inputs, self.layouts[0])
        return jax.tree.map(
            lambda array: array.astype(jnp.float32) / 255 if array.dtype == jnp.uint8 else array, inputs
        )

    def _data_spec(self) -> DataSpec:
        layout = self.layouts[0]
        if not layout:
            return DataSpec(self.input_shape, self.input_dtype, self.classes)
        shapes = {name: shape for name, shape, _ in layout}
        return DataSpec(shapes, {name: np.dtype(kind) for name, _, kind in layout}, self.classes)


def _mixed(array: jax.Array, share: Any) -> jax.Array:
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    return share * array + (1 - share) * array[::-1] if is_float else array


def means(names: tuple[str, ...], sums_M: Any) -> dict[str, float]:
    """Means by name from sums over examples, of which the last is the number of examples."""
    *sums, examples = np.asarray(sums_M).tolist()
    return {name: value / examples for name, value in zip(names, sums, strict=True)}


def _float32(outputs: PyTree) -> PyTree:
    """bfloat16 outputs as float32, for exact sums."""
    return jax.tree.map(
        lambda array: array.astype(jnp.float32) if jnp.issubdtype(array.dtype, jnp.floating) else array, outputs
    )
