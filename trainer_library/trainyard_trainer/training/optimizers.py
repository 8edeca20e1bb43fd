"""The optimizers of --optimizer, the schedule of the learning rate, and what --ema and --freeze add."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trainyard_trainer.models.names import names

PyTree = Any
Scaling = Literal["linear", "sqrt", "none"]


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
    optimizer: Callable[[optax.ScalarOrSchedule], optax.GradientTransformation],
    peak: float,
    start: float,
    steps: int,
    warmup: float,
    ahead: int = 0,
) -> optax.GradientTransformation:
    """An optimizer with linear warm-up from `start` to `peak` and cosine decay to 0.

    Args:
        optimizer: learning rate or schedule -> optimizer.
        steps: of the whole training, if it were all done on the current number of replicas.
        warmup: fraction of the steps in which the rate rises.
        ahead: offset of the schedule; not 0 if some steps were done on another number of replicas.
    """
    schedule = optax.warmup_cosine_decay_schedule(start, peak, int(warmup * steps), decay_steps=max(steps, 1))
    return optimizer(lambda count: schedule(count + ahead))


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


def with_average(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """An optimizer that also keeps an exponential moving average of the parameters.

    The first updates count for more, as in TensorFlow's ExponentialMovingAverage: (1 + n) / (10 + n) at most.
    """

    def init(params: PyTree) -> Averaged:
        return Averaged(optimizer.init(params), jax.tree.map(jnp.copy, params), jnp.zeros((), jnp.int32))

    def update(gradients: PyTree, state: Averaged, params: PyTree) -> tuple[PyTree, Averaged]:
        updates, inner = optimizer.update(gradients, state.inner, params)
        kept = jnp.minimum(decay, (1 + state.count) / (10 + state.count))
        new = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda old, leaf: kept * old + (1 - kept) * leaf, state.average, new)
        return updates, Averaged(inner, average, state.count + 1)

    return optax.GradientTransformation(init, update)


def only(optimizer: optax.GradientTransformation, trains: Callable[[str], bool]) -> optax.GradientTransformation:
    """An optimizer of the parameters with some names; the others stay as they are, and take no memory in its state."""

    def labels(params: PyTree) -> PyTree:
        return jax.tree.map(trains, names(params))

    return optax.multi_transform({True: optimizer, False: optax.set_to_zero()}, labels)
