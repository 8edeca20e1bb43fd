"""Two networks whose outputs are added, each with an optimizer of its own."""

from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn

from trainyard_trainer.data.datasets import Dataset, from_arrays
from trainyard_trainer.models.task import NetworkFunctions, PyTree, TrainingTask

linear, curved = nn.Dense(1), nn.Sequential([nn.Dense(32), nn.leaky_relu, nn.Dense(1)])


def init(key: jax.Array, points: jax.Array) -> tuple[PyTree, PyTree]:
    keys = jax.random.split(key)
    return {"linear": linear.init(keys[0], points), "curved": curved.init(keys[1], points)}, {}


def apply(params: PyTree, statistics: PyTree, points: jax.Array, key: jax.Array | None) -> tuple[PyTree, PyTree]:
    parts: dict[str, Any] = {
        "linear": linear.apply(params["linear"], points),
        "curved": curved.apply(params["curved"], points),
    }
    return {name: part[..., 0] for name, part in parts.items()}, statistics


def optimizer(rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    each = {"linear": optax.sgd(rate, momentum=0.9), "curved": optax.adam(rate)}
    return optax.multi_transform(each, {"linear": "linear", "curved": "curved"})


def data() -> Dataset:
    points = np.random.default_rng(0).uniform(-1, 1, (600, 2)).astype(np.float32)
    heights = points[:, 0] + points[:, 1] ** 2
    return from_arrays(points[:500], heights[:500], points[500:], heights[500:])


task = TrainingTask(
    network=NetworkFunctions(init, apply),
    loss=lambda outputs, labels: (outputs["linear"] + outputs["curved"] - labels) ** 2,
    metrics={"curved": lambda outputs, labels: outputs["curved"]},
    exported=lambda outputs: {"height": outputs["linear"] + outputs["curved"]},
    data=data,
    optimizer=optimizer,
    learning_rate=0.01,
)
