"""The baseline: the library's CNN, optimizer and batches of the digits in a plain training loop.

It has no sharding, weights, checkpoints, curves, progress or stopping. Prints one JSON object: examples_per_second of
the steps after the first, which is mostly compilation.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from trainyard_trainer.data import datasets
from trainyard_trainer.models.model import MODELS
from trainyard_trainer.training.optimizers import OPTIMIZERS

PyTree = Any


def make_step(
    network: nn.Module, optimizer: optax.GradientTransformation
) -> Callable[[PyTree, Any, Any], tuple[PyTree, jax.Array]]:
    """((params, statistics, optimizer's state), inputs [B, ...], labels [B, ...]) -> (the new state, loss)."""

    def step(state: PyTree, inputs: jax.Array, labels: jax.Array) -> tuple[PyTree, jax.Array]:
        params, statistics, optimizer_state = state

        def loss_of(params: PyTree) -> tuple[jax.Array, PyTree]:
            x = inputs.astype(jnp.float32) / 255 if inputs.dtype == jnp.uint8 else inputs
            variables = {"params": params, "batch_stats": statistics}
            logits, changed = network.apply(variables, x, train=True, mutable=["batch_stats"])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), changed.get("batch_stats", {})

        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), statistics, optimizer_state), loss

    return step


def batches(inputs: Any, labels: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Full batches in a new order each epoch, without end."""
    for epoch in range(1_000_000):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for start in range(0, len(labels) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size]
            yield inputs[rows], labels[rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="after the first")
    arguments = parser.parse_args()

    dataset = datasets.digits()
    inputs, labels = dataset.train.rows(np.arange(len(dataset.train)))
    kind = MODELS["cnn"]
    network = kind.make(len(dataset.label_names), jnp.float32)
    optimizer = OPTIMIZERS[kind.optimizer](kind.learning_rate, 0.0)

    first = jnp.zeros((1, *inputs.shape[1:]), jnp.float32)
    variables = jax.jit(network.init, static_argnames="train")(jax.random.key(0), first, train=False)
    state = variables["params"], variables.get("batch_stats", {}), optimizer.init(variables["params"])
    step = jax.jit(make_step(network, optimizer), donate_argnums=0)

    stream = batches(inputs, labels, arguments.batch_size)
    state, _ = jax.block_until_ready(step(state, *next(stream)))
    start = time.perf_counter()
    for _ in range(arguments.steps):
        state, _ = step(state, *next(stream))
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start
    print(json.dumps({"examples_per_second": arguments.steps * arguments.batch_size / seconds}))


if __name__ == "__main__":
    main()
