"""The baseline: a trainer's network, optimizer and batches in a lean training loop.

    python -m benchmarks.training.handwritten TRAINER --batch-size N --print-every N      # library or template

It is jit with a donated state, which may run ahead of the devices, over batches that are taken out of arrays in memory.
It has no sharding, weights, checkpoints, curves or stopping. It fetches and prints the loss every so many steps.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from benchmarks.training import repeated_digits

PyTree = Any
STEPS = 1_000_000  # of the schedule


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
    for epoch in range(STEPS):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for start in range(0, len(labels) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size]
            yield inputs[rows], labels[rows]


def network_of(trainer: str) -> nn.Module:
    """The network of the trainer: the template's, or the library's `--model cnn`."""
    if trainer == "template":
        from trainer import task

        template: nn.Module = task.Network(jnp.dtype("float32"))
        return template
    from trainyard_trainer.models.model import MODELS

    return MODELS["cnn"].make(10, jnp.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=["library", "template"])
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--print-every", type=int, required=True, help="steps")
    arguments = parser.parse_args()

    network = network_of(arguments.trainer)
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.002, STEPS // 5, STEPS))
    inputs, labels = (part[repeated_digits.HELD_OUT :] for part in repeated_digits.examples())
    variables = jax.jit(network.init, static_argnames="train")(jax.random.key(0), inputs[:1], train=False)
    state = variables["params"], variables.get("batch_stats", {}), optimizer.init(variables["params"])
    step = jax.jit(make_step(network, optimizer), donate_argnums=0)
    for number, batch in enumerate(batches(inputs, labels, arguments.batch_size), start=1):
        state, loss = step(state, *batch)
        if number % arguments.print_every == 0:
            print(json.dumps({"event": "progress", "step": number, "loss": float(loss)}), flush=True)


if __name__ == "__main__":
    main()
