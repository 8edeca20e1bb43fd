"""The training step (loss, gradients, mean over replicas, update) and the evaluation step.

A name ends in its tensor's shape: B examples on one device, P parameters, S statistics, M sums of the metrics.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainyard_trainer.data.datasets import Shard, Split
from trainyard_trainer.data.sharding import Batches, plain_order, read
from trainyard_trainer.models.model import Model, means
from trainyard_trainer.models.names import names
from trainyard_trainer.training.optimizers import Averaged
from trainyard_trainer.training.state import State
from trainyard_trainer.training.strategy import Strategy

PyTree = Any
TrainStep = Callable[..., tuple[State, jax.Array]]
EvaluationStep = Callable[..., jax.Array]
Trains = Callable[[str], bool]
"""Whether a parameter, by its name, is trained."""

EVALUATION_BATCH = 128  # examples per step and replica, if there are enough


def evaluated_variables(training: State) -> tuple[PyTree, Any]:
    """The parameters that are evaluated and exported, and the statistics."""
    average = training.optimizer.average if isinstance(training.optimizer, Averaged) else training.params
    return average, training.statistics


class Variables(NamedTuple):
    """The part of the state that a gradient depends on."""

    params: PyTree
    statistics: Any
    step: Any


def no_sums(model: Model) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The sums before the first step: see `Model.measure`."""
    return np.zeros(len(model.metric_names) + 1, np.float32)


def make_train_step(
    model: Model,
    optimizer: optax.GradientTransformation,
    strategy: Strategy,
    seed: int = 0,
    mixup: float = 0.0,
    trains: Trains = lambda _name: True,
) -> TrainStep:
    """(state, sums, inputs, labels, weights) -> (new state, new sums).

    Of parameters that do not train, no gradient is computed: the optimizer gets zeros.
    The sums [M] (see `Model.measure`, averaged over replicas) grow on the device from step to step, as fetching them
    costs as much as a short step.
    """
    gradient = _make_gradient(model, strategy, seed, mixup, trains)
    with_extra_args = optax.with_extra_args_support(optimizer).update

    def step(state: State, sums_M: jax.Array, *batch: jax.Array) -> tuple[State, jax.Array]:
        trained, statistics, step_sums_M = gradient(Variables(state.params, state.statistics, state.step), batch)
        gradients = _completed(trained, state.params, jnp.zeros_like)
        loss = step_sums_M[0] / step_sums_M[-1]
        updates, optimizer_state = with_extra_args(gradients, state.optimizer, state.params, value=loss)
        params = optax.apply_updates(state.params, updates)
        new = State(params, statistics, optimizer_state, state.step + 1)
        return strategy.constrain(new), sums_M + step_sums_M

    return strategy.compile(step, donate_state=True)


def make_evaluation_step(model: Model, strategy: Strategy) -> EvaluationStep:
    """((params, statistics), inputs, labels, weights) -> sums [M] over examples, averaged over replicas."""

    def sums(variables: tuple[PyTree, jax.Array], batch: Any, _replica: Any) -> jax.Array:
        if strategy.accumulate > 1:
            batch = [part.reshape(-1, *part.shape[2:]) for part in batch]
        inputs, labels, weights_B = batch
        params, statistics_S = variables
        outputs = model.infer(strategy.gather(params), model.statistics.unravel(statistics_S), inputs)
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
    batches = Batches(split, plain_order(split), batch_size, shard, model.label_limit)
    sums = []
    for batch in read(batches, split.in_memory):
        parts = (strategy.put(part) for part in (batch.inputs, batch.labels, batch.weights))
        sums.append(strategy.to_host(step(variables, *parts)))
        on_batch()
    return means(model.metric_names, np.sum(sums, axis=0))


def _make_gradient(
    model: Model, strategy: Strategy, seed: int, mixup: float, trains: Trains
) -> Callable[[Variables, Any], tuple[PyTree, jax.Array, jax.Array]]:
    """(variables, batch) -> the gradients of the mean loss over all examples of all replicas, statistics and sums.

    The gradients are a tree with None for each parameter that does not train.
    """

    def of_piece(variables: Variables, batch: Any, piece: Any) -> tuple[PyTree, jax.Array, jax.Array]:
        inputs, labels, weights_B = batch
        # By step and piece, so that a resumed training draws what an uninterrupted one would.
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), variables.step), piece)

        share: Any = jax.random.beta(jax.random.fold_in(key, 1), mixup, mixup) if mixup else None

        def loss(trained: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            params = _completed(trained, variables.params)
            outputs, statistics_S = model.train(strategy.gather(params), variables.statistics, inputs, key, share)
            sums_M = model.measure(outputs, labels, weights_B)
            if mixup:
                sums_M = share * sums_M + (1 - share) * model.measure(outputs, labels[::-1], weights_B)
            return sums_M[0], (statistics_S, sums_M)

        trained = jax.tree.map(
            lambda name, leaf: leaf if trains(name) else None, names(variables.params), variables.params
        )
        gradients, (statistics_S, sums_M) = jax.grad(loss, has_aux=True)(trained)
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


def _completed(some: PyTree, whole: PyTree, of: Callable[[Any], Any] = lambda leaf: leaf) -> PyTree:
    """A tree, and for each None in it a function of the leaf of another one, whose own None stay (Equinox has some)."""
    return jax.tree.map(
        lambda own, leaf: own if own is not None or leaf is None else of(leaf), some, whole,
        is_leaf=lambda leaf: leaf is None,
    )  # fmt: skip
