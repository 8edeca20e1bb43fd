"""A model of one's own, as one object: `--task trainer.my_model` trains the variable `task` of that module.

A name ends in its tensor's shape: B batch, K classes.
"""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import PartitionSpec

from trainyard_trainer.data.datasets import Dataset
from trainyard_trainer.errors import TaskError
from trainyard_trainer.models.kinds import check_linen

PyTree = Any


class DataSpec(NamedTuple):
    """The examples that a network is for: shape and type of one's inputs, and the number of labels' names.

    Both are dicts by name for inputs that are several arrays.
    """

    input_shape: Any
    input_dtype: Any
    classes: int


class NetworkFunctions(NamedTuple):
    """A network as two functions.

    Attributes:
        init: (key, inputs [1, ...]) -> (parameters, statistics), two trees of float32 arrays. Only the parameters are
            trained; statistics are what `apply` returns, such as BatchNorm's running means ({} for none).
        apply: (parameters, statistics, inputs [B, ...], key) -> (outputs, statistics). The outputs are any tree of
            arrays [B, ...]. The key is for random numbers such as dropout's; it is None in evaluation.
    """

    init: Callable[[jax.Array, jax.Array], tuple[PyTree, PyTree]]
    apply: Callable[[PyTree, PyTree, jax.Array, jax.Array | None], tuple[PyTree, PyTree]]


def linen(module: nn.Module) -> NetworkFunctions:
    """A module of flax.linen whose __call__ takes (inputs, train); with BatchNorm and dropout, if it has them."""

    def init(key: jax.Array, inputs: jax.Array) -> tuple[PyTree, PyTree]:
        check_linen(module)  # here, where a message has no traceback
        variables = module.init(key, inputs, train=False)
        return variables.get("params", {}), variables.get("batch_stats", {})

    def apply(params: PyTree, statistics: PyTree, inputs: jax.Array, key: jax.Array | None) -> tuple[PyTree, PyTree]:
        variables = {"params": params, "batch_stats": statistics}
        if key is None:
            return module.apply(variables, inputs, train=False), statistics
        outputs, changed = module.apply(variables, inputs, train=True, rngs={"dropout": key}, mutable=["batch_stats"])
        return outputs, changed.get("batch_stats", {})

    return NetworkFunctions(init, apply)


def in_bfloat16(network: Any) -> Any:
    """A network that computes in bfloat16: its parameters are cast, and so are inputs that are floats.

    What it names itself, such as `dtype` of a layer, stays. Parameters, statistics and the gradient are float32.
    """
    if not isinstance(network, NetworkFunctions):
        return (lambda data: in_bfloat16(network(data))) if callable(network) else network

    def cast(tree: PyTree, dtype: Any) -> PyTree:
        def of_leaf(leaf: Any) -> Any:  # one of the type stays the very array, as lora.py needs it
            is_other = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != dtype
            return leaf.astype(dtype) if is_other else leaf

        return jax.tree.map(of_leaf, tree)

    def apply(params: PyTree, statistics: PyTree, inputs: Any, key: jax.Array | None) -> Any:
        result: Any = network.apply(cast(params, jnp.bfloat16), statistics, cast(inputs, jnp.bfloat16), key)
        if not isinstance(result, tuple) or len(result) != 2:
            return result  # which is refused by those who call it
        return result[0], cast(result[1], jnp.float32)

    return NetworkFunctions(network.init, apply)


def cross_entropy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> jax.Array:
    """logits [B, ..., K], labels [B, ...] -> losses [B]: the mean over an example's tokens.

    `smoothing`: the share of a label that all classes have alike (Szegedy et al., arXiv:1512.00567).
    """
    if not jnp.issubdtype(labels.dtype, jnp.integer) or labels.shape != logits.shape[:-1]:
        vectors = (
            " Of one-hot vectors, give the positions: labels.argmax(axis=-1)." if labels.shape == logits.shape else ""
        )
        raise TaskError(
            "The cross entropy of classes takes outputs [B, ..., K] and a whole number [B, ...] for each: the labels "
            f"are {labels.dtype} {list(labels.shape)}, the outputs {list(logits.shape)}.{vectors} For labels of "
            "another kind, give the task a `loss`."
        )
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if smoothing:
        losses = (1 - smoothing) * losses - smoothing * jax.nn.log_softmax(logits).mean(axis=-1)
    losses_B: jax.Array = losses.mean(axis=tuple(range(1, labels.ndim)))
    return losses_B


def accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """logits [B, ..., K], labels [B, ...] -> [B]: the fraction of correct predictions."""
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    return correct.mean(axis=tuple(range(1, labels.ndim)))


def top_5(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """logits [B, K], labels [B] -> [B]: 1 where the label is among the five classes with the highest logits."""
    above = jnp.sum(logits > jnp.take_along_axis(logits, labels[:, None], axis=-1), axis=-1)
    return (above < 5).astype(jnp.float32)


def probabilities(logits: jax.Array) -> dict[str, jax.Array]:
    """The outputs of an exported classifier."""
    return {"logits": logits, "probabilities": jax.nn.softmax(logits)}


@dataclasses.dataclass(frozen=True)
class TrainingTask:
    """Everything that a training needs to know of a model. The defaults are for a classifier on the data of --data.

    Attributes:
        network: its functions, or a function of the data's shape that returns them.
        loss: (outputs, labels) -> losses [B]; training minimizes their mean over all examples of a step.
        metrics: name -> (outputs, labels) -> values [B], whose means are reported. The first one, or the loss if there
            is none, is what hyperparameter tuning gets. No name is one of FIELDS.
        exported: outputs -> the named outputs of the exported model.
        data: loads the examples (see data/datasets.py, `from_arrays`); None: those of --data.
        optimizer: learning rate or schedule -> optimizer, for the tree of parameters; None: that of --optimizer, or
            Adam. Its `update` gets the mean loss as `value`, if it has such an argument.
        learning_rate: for a global batch of `reference_batch_size`.
        input_shape, classes: used if the data does not define them.
        sharding: how --mesh divides matrices over `tensor`: (regular expression for a name, PartitionSpec), such as
            ("Dense_0/kernel$", PartitionSpec(None, "tensor")). The first match counts.
        weights: labels [B, ...] -> [B], how much each example counts in the loss and in the metrics; None: alike. With
            the number of an example's tokens, means are over tokens.
        on_evaluation: called after each evaluation, such as to print samples.
    """

    network: NetworkFunctions | Callable[[DataSpec], NetworkFunctions]
    loss: Callable[[PyTree, jax.Array], jax.Array] = cross_entropy
    metrics: Mapping[str, Callable[[PyTree, jax.Array], jax.Array]] = dataclasses.field(
        default_factory=lambda: {"accuracy": accuracy}
    )
    exported: Callable[[PyTree], dict[str, jax.Array]] = probabilities
    data: Callable[[], Dataset] | None = None
    optimizer: Callable[[optax.ScalarOrSchedule], optax.GradientTransformation] | None = None
    learning_rate: float = 0.001
    reference_batch_size: int = 16
    input_shape: tuple[int, ...] = ()
    classes: int = 0
    sharding: Sequence[tuple[str, PartitionSpec]] = ()
    weights: Callable[[jax.Array], jax.Array] | None = None
    on_evaluation: "Callable[[Evaluation], None] | None" = None
    name: str = ""


class Evaluation(NamedTuple):
    """The argument of a task's `on_evaluation`, on the chief.

    Attributes:
        step: completed steps.
        metrics: means over the held-out examples, by name.
        infer: inputs [B, ...] -> outputs [B, ...] of the network that was evaluated.
    """

    step: int
    metrics: Mapping[str, float]
    infer: Callable[[Any], PyTree]


def load_task(module: str) -> TrainingTask:
    """The variable `task` of a module that can be imported from here or the working directory.

    Raises:
        TaskError: there is no such module, or it has no task.
    """
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    try:
        task = getattr(importlib.import_module(module), "task", None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import of the module itself
        raise TaskError(
            f"--task {module}: there is no module {error.name} here. Name it as in `import {module}`, and start in its "
            "directory or install it. A job has what is in the package trainer/, and what pyproject.toml names."
        ) from error
    if not isinstance(task, TrainingTask):
        raise TaskError(f"--task {module}: the module has no variable `task` that is a TrainingTask.")
    return dataclasses.replace(task, name=task.name or module)
