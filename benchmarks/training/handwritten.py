"""The baseline: the template's network, optimizer, data and batches in a plain training loop.

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
from flax import jax_utils
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from trainer.data import datasets
from trainer.models.model import MODELS
from trainer.steps import OPTIMIZERS

PyTree = Any


def make_step(
    network: nn.Module, optimizer: optax.GradientTransformation, axis: str | None = None
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

        result = jax.value_and_grad(loss_of, has_aux=True)(params)
        if axis:  # one all-reduce: several at once can deadlock XLA's thread pool on a small machine
            flat, unravel = ravel_pytree(result)
            result = unravel(jax.lax.pmean(flat, axis))
        (loss, statistics), gradients = result
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), statistics, optimizer_state), loss

    return step


def batches(inputs: Any, labels: Any, batch_size: int, leading: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """Full batches in a new order each epoch, without end."""
    for epoch in range(1_000_000):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for start in range(0, len(labels) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size].reshape(*leading, -1)
            yield inputs[rows], labels[rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=tuple(MODELS), required=True)
    parser.add_argument(
        "--input-shape", type=int, nargs="+", help="of synthetic examples (default: the digits)"
    )
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch-size", type=int, required=True, help="per device")
    parser.add_argument("--steps", type=int, required=True, help="after the first")
    arguments = parser.parse_args()

    shape = arguments.input_shape
    dataset = datasets.synthetic(tuple(shape), arguments.classes) if shape else datasets.digits()
    inputs, labels = dataset.train.rows(np.arange(len(dataset.train)))
    kind = MODELS[arguments.model]
    network = kind.make(arguments.classes, jnp.float32)
    optimizer = OPTIMIZERS[kind.optimizer](kind.learning_rate, 0.0)

    first = jnp.zeros((1, *inputs.shape[1:]), jnp.int32 if kind.tokens else jnp.float32)
    variables = jax.jit(network.init, static_argnames="train")(jax.random.key(0), first, train=False)
    state = variables["params"], variables.get("batch_stats", {}), optimizer.init(variables["params"])
    devices = jax.local_device_count()
    if devices == 1:
        step = jax.jit(make_step(network, optimizer), donate_argnums=0)
    else:
        step = jax.pmap(make_step(network, optimizer, "device"), "device", donate_argnums=0)
        state = jax_utils.replicate(state, axis_name="device")

    batch_size = devices * arguments.batch_size
    stream = batches(inputs, labels, batch_size, (devices,) if devices > 1 else ())
    state, _ = jax.block_until_ready(step(state, *next(stream)))
    start = time.perf_counter()
    for _ in range(arguments.steps):
        state, loss = step(state, *next(stream))
        if devices > 1:  # with many steps in flight, XLA's thread pool can deadlock
            jax.block_until_ready(loss)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start
    print(json.dumps({"examples_per_second": arguments.steps * batch_size / seconds}))


if __name__ == "__main__":
    main()
