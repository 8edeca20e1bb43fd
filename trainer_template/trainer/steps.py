"""The training step (loss, gradients, mean over replicas, update), the evaluation step, and the optimizers.

A name ends in its tensor's shape: L local devices, B examples on one of them, P parameters, S statistics.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
import optax

from trainer.data.datasets import Shard, Split
from trainer.data.sharding import Batches, plain_order, read
from trainer.models.model import Model, Sums, measure
from trainer.state import State
from trainer.strategy import Strategy

PyTree = Any
Scaling = Literal["linear", "sqrt", "none"]
TrainStep = Callable[[State, Any, Any, Any], tuple[State, Sums]]
GradientStep = Callable[[tuple[Any, Any], Any, Any, Any], tuple[Any, Any, Sums]]
EvaluationStep = Callable[[tuple[Any, Any], Any, Any, Any], Sums]

EVALUATION_BATCH = 128  # examples per step and replica, if there are enough


# By name: (learning rate or schedule) -> optimizer. It must be elementwise, since it gets all parameters as one vector,
# or the slice of one parameter server.
OPTIMIZERS: dict[str, Callable[[optax.ScalarOrSchedule], optax.GradientTransformation]] = {
    "adam": optax.adam,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
}


def make_optimizer(
    optimizer: str, peak: float, start: float, steps: int, warmup: float, ahead: int = 0
) -> optax.GradientTransformation:
    """The optimizer with linear warm-up of the learning rate from `start` to `peak` and cosine decay to 0.

    Args:
        steps: of the whole training, if it were all done on the current number of replicas.
        warmup: fraction of the steps in which the rate rises.
        ahead: offset of the schedule; not 0 if some steps were done on another number of replicas.
    """
    schedule = optax.warmup_cosine_decay_schedule(start, peak, int(warmup * steps), decay_steps=max(steps, 1))
    return OPTIMIZERS[optimizer](lambda count: schedule(count + ahead))


def scale_learning_rate(rate: float, scaling: Scaling, batch_size: int, reference: int) -> float:
    """The learning rate for a global batch size, given the rate for the reference size.

    Linear scaling: Goyal et al., arXiv:1706.02677; square root, for adaptive optimizers: Malladi et al.,
    arXiv:2205.10287.
    """
    factor = batch_size / reference
    return rate * {"linear": factor, "sqrt": math.sqrt(factor), "none": 1.0}[scaling]


def make_train_step(model: Model, optimizer: optax.GradientTransformation, strategy: Strategy) -> TrainStep:
    """(state, inputs, labels, weights) -> (new state, sums over examples, averaged over replicas)."""
    gradient = _make_gradient(model, strategy)

    def step(state: State, inputs: jax.Array, labels: jax.Array, weights_B: jax.Array) -> tuple[State, Sums]:
        gradient_P, statistics_S, sums = gradient((state.params, state.statistics), inputs, labels, weights_B)
        updates_P, optimizer_state = optimizer.update(gradient_P, state.optimizer)
        params = optax.apply_updates(state.params, model.params.unravel(updates_P))
        return State(params, statistics_S, optimizer_state), sums

    return strategy.compile(step, donate_state=True)


def make_gradient_step(model: Model, strategy: Strategy) -> GradientStep:
    """((params, statistics), inputs, labels, weights) -> (gradient [P], statistics [S], sums), without an update."""
    return strategy.compile(_make_gradient(model, strategy), donate_state=False)


def make_evaluation_step(model: Model, strategy: Strategy) -> EvaluationStep:
    """((params, statistics), inputs, labels, weights) -> sums over examples, averaged over replicas."""

    def step(
        variables: tuple[PyTree, jax.Array], inputs: jax.Array, labels: jax.Array, weights_B: jax.Array
    ) -> Sums:
        params, statistics_S = variables
        logits = model.infer(params, model.statistics.unravel(statistics_S), inputs)
        return strategy.mean(measure(logits, labels, weights_B))

    return strategy.compile(step, donate_state=False)


def evaluate(
    model: Model,
    step: EvaluationStep,
    variables: tuple[Any, Any],
    split: Split,
    batch_size: int,
    shard: Shard,
    strategy: Strategy,
    on_batch: Callable[[], None],
) -> tuple[float, float]:
    """Mean loss and accuracy over a split; all processes call this together, with replicated variables."""
    batches = Batches(split, plain_order(split), batch_size, shard, model.classes)
    sums = []
    for batch in read(batches, split.in_memory):
        parts = (strategy.put(part) for part in (batch.inputs, batch.labels, batch.weights))
        sums.append(strategy.to_host(step(variables, *parts)))
        on_batch()
    loss, correct, examples = np.sum(sums, axis=0).tolist()
    return loss / examples, correct / examples


def _make_gradient(model: Model, strategy: Strategy) -> GradientStep:
    def gradient(
        variables: tuple[PyTree, jax.Array], inputs: jax.Array, labels: jax.Array, weights_B: jax.Array
    ) -> tuple[jax.Array, jax.Array, Sums]:
        all_params, statistics_S = variables

        def loss(params: PyTree) -> tuple[jax.Array, tuple[Sums, jax.Array]]:
            logits, new_statistics_S = model.train(params, statistics_S, inputs)
            sums = measure(logits, labels, weights_B)
            return sums.loss, (sums, new_statistics_S)

        gradients, (sums, new_statistics_S) = jax.grad(loss, has_aux=True)(all_params)
        # Sums over examples are averaged, without padding: divided by the number of examples they are the mean over all
        # examples, however unevenly the last batch of an epoch fills the replicas.
        gradient_P, new_statistics_S, sums = strategy.mean(
            (model.params.ravel(gradients), new_statistics_S, sums)
        )
        return gradient_P / sums.examples, new_statistics_S, sums

    return gradient
