"""The optimizers of --optimizer, the schedule of the learning rate, and what --ema and --freeze add.

An optimizer's `update` gets `value`, the mean loss of the step, by name, as optax.contrib.reduce_on_plateau and
optax.polyak_sgd need it.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trainyard_trainer.errors import TaskError
from trainyard_trainer.models.checks import explained
from trainyard_trainer.models.kinds import kind
from trainyard_trainer.models.names import names

PyTree = Any
Scaling = Literal["linear", "sqrt", "none"]
MakeOptimizer = Callable[[optax.ScalarOrSchedule], optax.GradientTransformation]


def matrices(params: PyTree) -> PyTree:
    """The parameters that decay: not biases, and not the scales of a normalization."""
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


# The values of --optimizer: (learning rate or schedule, weight decay) -> optimizer.
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": lambda rate, decay: optax.adamw(rate, weight_decay=decay, mask=matrices) if decay else optax.adam(rate),
    "momentum": lambda rate, decay: optax.chain(
        optax.add_decayed_weights(decay, matrices) if decay else optax.identity(),
        optax.sgd(rate, momentum=0.9, nesterov=True),
    ),
    "lamb": lambda rate, decay: optax.lamb(rate, weight_decay=decay, mask=matrices),
}


def make_optimizer(
    optimizer: MakeOptimizer, peak: float, start: float, steps: int, warmup: float, ahead: int = 0
) -> optax.GradientTransformation:
    """An optimizer with linear warm-up from `start` to `peak` and cosine decay to 0.

    Args:
        optimizer: learning rate or schedule -> optimizer.
        steps: of the whole training, if it were all done on the current number of replicas.
        warmup: fraction of the steps in which the rate rises.
        ahead: offset of the schedule; not 0 if some steps were done on another number of replicas.

    Raises:
        TaskError: the function returns no optimizer.
    """
    schedule = optax.warmup_cosine_decay_schedule(start, peak, int(warmup * steps), decay_steps=max(steps, 1))
    return _storable(optimizer(lambda count: schedule(count + ahead)))


def reads_rate(optimizer: MakeOptimizer, params: PyTree, label: str) -> bool:
    """Try an update without computing it, and say whether the optimizer depends on its learning rate.

    Args:
        params: the tree of `jax.ShapeDtypeStruct`s.
        label: of the task, for messages.

    Raises:
        TaskError: the optimizer needs more than a step has.
    """
    asked: list[None] = []

    def schedule(count: Any) -> Any:
        asked.append(None)
        return 0.1 + 0.0 * count

    made = _storable(optimizer(schedule))

    def update(params: PyTree) -> PyTree:
        return made.update(params, made.init(params), params, value=jnp.float32(0))

    with explained(
        f"The {label}: its optimizer cannot be used. A step has the mean gradient of its examples, the parameters, and "
        "the mean loss as `value`: neither the gradient of each example nor the loss of other parameters. Line "
        "searches need that (optax.lbfgs works with linesearch=None), and so do optax.contrib.dpsgd and sophia."
    ):
        updates, _ = jax.eval_shape(update, params)
        if _shapes(updates) != _shapes(params):  # such as by optax.contrib.dpsgd, if the first axes are as long
            raise ValueError("its updates have other shapes than the parameters")
    return bool(asked)


def _storable(optimizer: Any) -> optax.GradientTransformationExtraArgs:
    """An optimizer whose state is of numbers alone: of a typed PRNG key, its data. `update` takes `value`."""
    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TaskError(
            f"`optimizer` of the task returns {kind(optimizer)}; it is a function of the learning rate that returns an "
            "optax.GradientTransformation, such as optimizer=lambda rate: optax.adam(rate)."
        )
    inner = optax.with_extra_args_support(optimizer)
    accepted = inspect.signature(inner.update).parameters

    def init(params: PyTree) -> PyTree:
        return _with_key_data(inner.init(params))

    def update(gradients: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        structure: Any
        leaves, structure = jax.tree.flatten(state)
        keys = _key_kinds(inner, gradients if params is None else params)
        typed = [
            leaf if key is None else jax.random.wrap_key_data(leaf, impl=key)
            for leaf, key in zip(leaves, keys, strict=True)
        ]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
            extra = {name: value for name, value in extra.items() if name in accepted}
        updates, new = inner.update(gradients, structure.unflatten(typed), params, **extra)
        return updates, _with_key_data(new)

    return optax.GradientTransformationExtraArgs(init, update)


def _with_key_data(state: PyTree) -> PyTree:
    """The state with the data of each typed PRNG key in its place."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)


def _key_kinds(optimizer: optax.GradientTransformation, params: PyTree) -> list[Any]:
    """The implementation of each leaf of the state that is a typed PRNG key; None for the others."""
    kinds: list[Any] = []

    def trace(params: PyTree) -> None:
        leaves = jax.tree.leaves(optimizer.init(params))
        kinds.extend(jax.random.key_impl(leaf) if _is_key(leaf) else None for leaf in leaves)

    jax.eval_shape(trace, params)
    return kinds


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def scale_learning_rate(rate: float, scaling: Scaling, batch_size: int, reference: int) -> float:
    """The learning rate for a global batch size, given the rate for the reference size.

    Linear scaling: Goyal et al., arXiv:1706.02677; square root, for adaptive optimizers: Malladi et al.,
    arXiv:2205.10287.
    """
    factor = batch_size / reference
    return rate * {"linear": factor, "sqrt": math.sqrt(factor), "none": 1.0}[scaling]


class Averaged(NamedTuple):
    """The state of `with_average`: an optimizer's, the moving average of the parameters, and the number of updates."""

    inner: optax.OptState
    average: PyTree
    count: Any


def with_average(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformationExtraArgs:
    """An optimizer that also keeps an exponential moving average of the parameters.

    The first updates count for more, as in TensorFlow's ExponentialMovingAverage: (1 + n) / (10 + n) at most.
    """

    inner = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> Averaged:
        return Averaged(inner.init(params), jax.tree.map(jnp.copy, params), jnp.zeros((), jnp.int32))

    def update(gradients: PyTree, state: Averaged, params: PyTree = None, **extra: Any) -> tuple[PyTree, Averaged]:
        updates, inner_state = inner.update(gradients, state.inner, params, **extra)
        kept = jnp.minimum(decay, (1 + state.count) / (10 + state.count))
        new = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda old, leaf: kept * old + (1 - kept) * leaf, state.average, new)
        return updates, Averaged(inner_state, average, state.count + 1)

    return optax.GradientTransformationExtraArgs(init, update)


def only(optimizer: optax.GradientTransformation, trains: Callable[[str], bool]) -> optax.GradientTransformation:
    """An optimizer of the parameters with some names; the others stay as they are, and take no memory in its state."""

    def labels(params: PyTree) -> PyTree:
        return jax.tree.map(trains, names(params))

    return optax.multi_transform({True: optimizer, False: optax.set_to_zero()}, labels)
