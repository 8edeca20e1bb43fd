"""Training against a plain loop in float64, which knows no devices and no pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.lazy import experiment, jax, jnp, optax, state, steps, strategy, tiny
from trainyard_trainer.arguments import parse_arguments
from trainyard_trainer.data.datasets import Arrays, Dataset, Shard, Split
from trainyard_trainer.data.sharding import epoch_order
from trainyard_trainer.processes.cluster import ClusterSpec

EXAMPLES, GLOBAL_BATCH, EPOCHS, RATE = 33, 16, 3, 0.1  # the last batch of an epoch has one example
TOLERANCE = 2e-5  # of float32, after nine steps, on any processor


def plain_loop(
    params: Any, statistics: Any, inputs: NDArray[Any], labels: NDArray[Any], orders: list[NDArray[Any]], pieces: int
) -> tuple[Any, Any]:
    """Parameters and statistics after a step for each batch of each order; BatchNorm normalizes each piece."""

    def loss(params: Any, x: Any, y: Any, weights: Any) -> Any:
        hidden = x.reshape(len(x), -1) @ params["Dense_0"]["kernel"]
        mean, variance = hidden.mean(0), hidden.var(0)
        normed = (hidden - mean) / jnp.sqrt(variance + 1e-5)
        normed = normed * params["BatchNorm_0"]["scale"] + params["BatchNorm_0"]["bias"]
        logits = jnp.maximum(normed, 0) @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
        return -(weights * jax.nn.log_softmax(logits)[jnp.arange(len(y)), y]).sum(), (mean, variance)

    gradient = jax.jit(jax.grad(loss, has_aux=True))
    for order in orders:
        for start in range(0, len(order), GLOBAL_BATCH):
            at = start + np.arange(GLOBAL_BATCH)
            rows, weights = order[at % len(order)], (at < len(order)).astype(np.float64)
            pairs = zip(np.split(rows, pieces), np.split(weights, pieces), strict=True)
            parts = [gradient(params, inputs[some], labels[some], weight) for some, weight in pairs]
            rate = RATE / weights.sum()
            for part, _ in parts:
                params = jax.tree.map(lambda leaf, change, rate=rate: leaf - rate * change, params, part)
            mean, variance = (sum(values) / pieces for values in zip(*(seen for _, seen in parts), strict=True))
            statistics = {
                "mean": 0.9 * statistics["mean"] + 0.1 * mean, "var": 0.9 * statistics["var"] + 0.1 * variance
            }  # fmt: skip
    return params, statistics


@pytest.mark.parametrize(("pieces", "sharding"), [(1, "data"), (2, "off"), (4, "data")])
def test_training_with_a_last_batch_of_one_example_is_that_of_a_plain_loop(pieces: int, sharding: Any) -> None:
    model = tiny.normalized()
    inputs, labels = tiny.examples(model, EXAMPLES)
    split = Split((Arrays(inputs, labels),), (EXAMPLES,))
    dataset = Dataset(split, split, model.input_shape, np.dtype(np.float32), (), sharding)
    arguments = parse_arguments(["--batch-size", str(GLOBAL_BATCH // pieces), "--accumulate", str(pieces)])
    alone, shard = strategy.OneDevice(pieces), Shard(0, 1, pieces)
    training_experiment = experiment.Experiment(arguments, ClusterSpec(), alone, shard, dataset, model, model)
    first = state.initial_state(model, optax.sgd(RATE), seed=0)
    step, training = steps.make_train_step(model, optax.sgd(RATE), alone), alone.replicate(first)
    for epoch in range(EPOCHS):
        batches = training_experiment.epoch_batches(state.TrainingPosition(epochs=epoch))
        for batch in (batches[number] for number in range(len(batches))):
            parts = [alone.put(part) for part in (batch.inputs, batch.labels, batch.weights)]
            training, _ = step(training, steps.no_sums(model), *parts)

    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), first.params)
        before = model.statistics.unravel(np.asarray(first.statistics, np.float64))["BatchNorm_0"]
        orders = [epoch_order(dataset, shard, 0, epoch) for epoch in range(EPOCHS)]
        expected, seen = plain_loop(params, before, inputs.astype(np.float64), labels, orders, pieces)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=TOLERANCE),
            (alone.to_host(training.params), model.statistics.unravel(np.asarray(training.statistics))["BatchNorm_0"]),
            (jax.device_get(expected), jax.device_get(seen)),
        )
