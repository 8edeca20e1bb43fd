"""Regression with LAMB, whose steps depend on the norm of each parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from trainyard_trainer.data.datasets import Dataset, from_arrays
from trainyard_trainer.models.task import TrainingTask, linen


class RegressionNetwork(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return nn.Dense(1)(nn.tanh(nn.Dense(16)(x)))[..., 0]


def data() -> Dataset:
    x = np.random.default_rng(0).random((600, 3), np.float32)
    y = x @ np.array([1, -2, 3], np.float32)
    return from_arrays(x[:500], y[:500], x[500:], y[500:])


task = TrainingTask(
    network=linen(RegressionNetwork()),
    loss=lambda outputs, labels: (outputs - labels) ** 2,
    metrics={"error": lambda outputs, labels: jnp.abs(outputs - labels)},
    exported=lambda outputs: {"value": outputs},
    data=data,
    optimizer=optax.lamb,
    learning_rate=0.05,
)
