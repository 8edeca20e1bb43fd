"""The step: loss, gradients, their mean over all replicas, the update. And the same without an update, to evaluate.

A name ends in its tensor's shape: L local devices, B examples on one of them, P parameters, S statistics.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
import optax

from trainer.data import Share, Split
from trainer.models import Model, Sums, measure
from trainer.sharding import Batches, plain_order, read
from trainer.state import State
from trainer.strategy import Strategy

PyTree = Any
Scaling = Literal["linear", "sqrt", "none"]
TrainStep = Callable[[State, Any, Any, Any], tuple[State, Sums]]
GradientStep = Callable[[tuple[Any, Any], Any, Any, Any], tuple[Any, Any, Sums]]
EvaluationStep = Callable[[tuple[Any, Any], Any, Any, Any], Sums]

EVALUATION_BATCH = 128  # examples a step and replica, unless training has less


# By name: (learning rate, or its schedule) -> the optimizer. It must treat each parameter by itself, since what it is
# given is one vector of them, or the part of it that one parameter server has.
OPTIMIZERS: dict[str, Callable[[optax.ScalarOrSchedule], optax.GradientTransformation]] = {
    "adam": optax.adam,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
}


def make_optimizer(
    optimizer: str, peak: float, start: float, steps: int, warmup: float, ahead: int = 0
) -> optax.GradientTransformation:
    """The optimizer of that name, its learning rate rising from `start` to `peak` and falling to 0.

    Args:
        steps: of the whole training, were it all done on as many replicas as now.
        warmup: the part of them in which the rate rises.
        ahead: how many more steps are done than the optimizer has seen; not 0 where some were done on other numbers of
            replicas.
    """
    schedule = optax.warmup_cosine_decay_schedule(start, peak, int(warmup * steps), decay_steps=max(steps, 1))
    return OPTIMIZERS[optimizer](lambda count: schedule(count + ahead))


def scaled_rate(rate: float, scaling: Scaling, batch_size: int, reference: int) -> float:
    """The learning rate for a global batch of this size, given the one for the reference size.

    With more examples in a step there are fewer steps, so they may be longer: in proportion (Goyal et al.,
    arXiv:1706.02677) or to the root (which adaptive optimizers like better: Malladi et al., arXiv:2205.10287).
    """
    factor = batch_size / reference
    return rate * {"linear": factor, "sqrt": math.sqrt(factor), "none": 1.0}[scaling]


def make_train_step(model: Model, optimizer: optax.GradientTransformation, strategy: Strategy) -> TrainStep:
    """(state, inputs, labels, weights) -> (new state, sums over the examples of all replicas)."""
    gradient = _make_gradient(model, strategy)

    def step(state: State, inputs: jax.Array, labels: jax.Array, weights_B: jax.Array) -> tuple[State, Sums]:
        gradient_P, statistics_S, sums = gradient((state.params, state.statistics), inputs, labels, weights_B)
        updates_P, optimizer_state = optimizer.update(gradient_P, state.optimizer)
        params = optax.apply_updates(state.params, model.params.split(updates_P))
        return State(params, statistics_S, optimizer_state), sums

    return strategy.compile(step, donate_state=True)


def make_gradient_step(model: Model, strategy: Strategy) -> GradientStep:
    """((params, statistics), inputs, labels, weights) -> (gradient [P], statistics [S], sums): no update."""
    return strategy.compile(_make_gradient(model, strategy), donate_state=False)


def make_evaluation_step(model: Model, strategy: Strategy) -> EvaluationStep:
    """((params, statistics), inputs, labels, weights) -> sums over the examples of all replicas, by their number."""

    def step(
        variables: tuple[PyTree, jax.Array], inputs: jax.Array, labels: jax.Array, weights_B: jax.Array
    ) -> Sums:
        params, statistics_S = variables
        logits = model.infer(params, model.statistics.split(statistics_S), inputs)
        return strategy.mean(measure(logits, labels, weights_B))

    return strategy.compile(step, donate_state=False)


def evaluate(
    model: Model,
    step: EvaluationStep,
    variables: tuple[Any, Any],
    split: Split,
    batch_size: int,
    share: Share,
    strategy: Strategy,
    tell: Callable[[], None],
) -> tuple[float, float]:
    """Mean loss and accuracy over a split, each process having taken its part of it.

    Args:
        variables: parameters and statistics, as the strategy has them.
        tell: called after each batch: this gets on.
    """
    batches = Batches(split, plain_order(split), batch_size, share, model.classes)
    sums = []
    for batch in read(batches, split.in_memory):
        parts = (strategy.put(part) for part in (batch.inputs, batch.labels, batch.weights))
        sums.append(strategy.on_host(step(variables, *parts)))
        tell()
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
        # What is averaged are sums over examples, padding not counted; their ratio to the number of examples is the
        # mean over all of them, however unevenly the last batch of an epoch fills the replicas.
        gradient_P, new_statistics_S, sums = strategy.mean(
            (model.params.join(gradients), new_statistics_S, sums)
        )
        return gradient_P / sums.examples, new_statistics_S, sums

    return gradient
