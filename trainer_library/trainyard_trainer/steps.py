"""The training step (loss, gradients, mean over replicas, update), the evaluation step, and the optimizers.

A name ends in its tensor's shape: B examples on one device, P parameters, S statistics, M sums of the metrics.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainyard_trainer.data.datasets import Shard, Split
from trainyard_trainer.data.sharding import Batches, plain_order, read
from trainyard_trainer.models.model import Model, means
from trainyard_trainer.state import State
from trainyard_trainer.strategy import Strategy

PyTree = Any
Scaling = Literal["linear", "sqrt", "none"]
TrainStep = Callable[..., tuple[State, jax.Array]]
GradientStep = Callable[..., tuple[jax.Array, jax.Array, jax.Array]]
EvaluationStep = Callable[..., jax.Array]

EVALUATION_BATCH = 128  # examples per step and replica, if there are enough


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


class Variables(NamedTuple):
    """The part of the state that a gradient depends on."""

    params: PyTree
    statistics: Any
    step: Any


def make_optimizer(
    optimizer: Callable[[optax.ScalarOrSchedule], optax.GradientTransformation],
    peak: float,
    start: float,
    steps: int,
    warmup: float,
    ahead: int = 0,
) -> optax.GradientTransformation:
    """The optimizer with linear warm-up of the learning rate from `start` to `peak` and cosine decay to 0.

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


def no_sums(model: Model) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The sums before the first step: see `Model.measure`."""
    return np.zeros(len(model.metric_names) + 1, np.float32)


def make_train_step(
    model: Model, optimizer: optax.GradientTransformation, strategy: Strategy, seed: int = 0
) -> TrainStep:
    """(state, sums, inputs, labels, weights) -> (new state, new sums).

    The sums [M] (see `Model.measure`, averaged over replicas) grow on the device from step to step, as fetching them
    costs as much as a short step.
    """
    gradient = _make_gradient(model, strategy, seed)

    def step(state: State, sums_M: jax.Array, *batch: jax.Array) -> tuple[State, jax.Array]:
        gradients, statistics, step_sums_M = gradient(Variables(state.params, state.statistics, state.step), batch)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        new = State(params, statistics, optimizer_state, state.step + 1)
        return strategy.constrain(new), sums_M + step_sums_M

    return strategy.compile(step, donate_state=True)


def make_gradient_step(model: Model, strategy: Strategy, seed: int = 0) -> GradientStep:
    """(variables, inputs, labels, weights) -> (gradient [P], statistics [S], sums [M]), without an update."""
    gradient = _make_gradient(model, strategy, seed)

    def step(variables: Variables, *batch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        gradients, statistics, sums_M = gradient(variables, batch)
        return model.params.ravel(gradients), statistics, sums_M

    return strategy.compile(step, donate_state=False)


def make_evaluation_step(model: Model, strategy: Strategy) -> EvaluationStep:
    """((params, statistics), inputs, labels, weights) -> sums [M] over examples, averaged over replicas."""

    def sums(variables: tuple[PyTree, jax.Array], batch: Any, _replica: Any) -> jax.Array:
        if strategy.accumulate > 1:
            batch = [part.reshape(-1, *part.shape[2:]) for part in batch]
        inputs, labels, weights_B = batch
        params, statistics_S = variables
        outputs = model.infer(params, model.statistics.unravel(statistics_S), inputs)
        return model.measure(outputs, labels, weights_B)

    average = strategy.average(sums)
    return strategy.compile(lambda variables, *batch: average(variables, batch), donate_state=False)


def evaluate(
    model: Model,
    step: EvaluationStep,
    variables: tuple[Any, Any],
    split: Split,
    batch_size: int,
    shard: Shard,
    strategy: Strategy,
    on_batch: Callable[[], None],
) -> dict[str, float]:
    """Means of the loss and the metrics over a split; all processes call this together, with replicated variables."""
    batches = Batches(split, plain_order(split), batch_size, shard, model.classes)
    sums = []
    for batch in read(batches, split.in_memory):
        parts = (strategy.put(part) for part in (batch.inputs, batch.labels, batch.weights))
        sums.append(strategy.to_host(step(variables, *parts)))
        on_batch()
    return means(model.metric_names, np.sum(sums, axis=0))


def _make_gradient(
    model: Model, strategy: Strategy, seed: int
) -> Callable[[Variables, Any], tuple[PyTree, jax.Array, jax.Array]]:
    """(variables, batch) -> the gradients of the mean loss over all examples of all replicas, statistics and sums."""

    def of_piece(variables: Variables, batch: Any, piece: Any) -> tuple[PyTree, jax.Array, jax.Array]:
        inputs, labels, weights_B = batch
        # By step and piece, so that a resumed training draws what an uninterrupted one would.
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), variables.step), piece)

        def loss(params: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            outputs, statistics_S = model.train(params, variables.statistics, inputs, key)
            sums_M = model.measure(outputs, labels, weights_B)
            return sums_M[0], (statistics_S, sums_M)

        gradients, (statistics_S, sums_M) = jax.grad(loss, has_aux=True)(variables.params)
        return gradients, statistics_S, sums_M

    def of_replica(variables: Variables, batch: Any, replica: Any) -> tuple[PyTree, jax.Array, jax.Array]:
        pieces = strategy.accumulate
        if pieces == 1:
            return of_piece(variables, batch, replica)

        def add(total: PyTree, numbered: Any) -> tuple[PyTree, None]:
            number, piece = numbered
            result = of_piece(variables, piece, replica * pieces + number)
            return jax.tree.map(jnp.add, total, result), None

        shapes = jax.eval_shape(of_piece, variables, [part[0] for part in batch], 0)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total, _ = jax.lax.scan(add, zeros, (jnp.arange(pieces), list(batch)))
        averaged: tuple[PyTree, jax.Array, jax.Array] = jax.tree.map(lambda sum_: sum_ / pieces, total)
        return averaged

    average = strategy.average(of_replica)

    def gradient(variables: Variables, batch: Any) -> tuple[PyTree, jax.Array, jax.Array]:
        # Sums over examples are averaged, without padding: divided by the number of examples they are the mean over all
        # examples, however unevenly the last batch of an epoch fills the replicas.
        gradients, statistics_S, sums_M = average(variables, batch)
        scale = 1 / sums_M[-1]  # a division of each element takes 4 % of a step of 2 ms
        return jax.tree.map(lambda leaf: leaf * scale, gradients), statistics_S, sums_M

    return gradient
