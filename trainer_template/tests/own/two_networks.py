"""A generative adversarial network: two networks, each with an optimizer of its own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from trainer.data.datasets import Dataset, from_arrays
from trainer.models.task import NetworkFunctions, PyTree, TrainingTask

NOISE = 4


class Perceptron(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.outputs)(nn.leaky_relu(nn.Dense(32)(x)))


generator, critic = Perceptron(2), Perceptron(1)


def init(key: jax.Array, points: jax.Array) -> tuple[PyTree, PyTree]:
    return {
        "generator": generator.init(key, jnp.zeros((1, NOISE)))["params"],
        "critic": critic.init(jax.random.fold_in(key, 1), points)["params"],
    }, {}


def apply(
    params: PyTree, statistics: PyTree, points: jax.Array, key: jax.Array | None
) -> tuple[PyTree, PyTree]:
    noise = jax.random.normal(jax.random.key(0) if key is None else key, (points.shape[0], NOISE))
    drawn: Any = generator.apply({"params": params["generator"]}, noise)
    frozen = jax.lax.stop_gradient
    outputs: PyTree = {
        "true": critic.apply({"params": params["critic"]}, points),
        "false": critic.apply({"params": params["critic"]}, frozen(drawn)),
        "to_deceive": critic.apply({"params": frozen(params["critic"])}, drawn),
    }
    return {name: score[..., 0] for name, score in outputs.items()}, statistics


def loss(outputs: PyTree, labels: jax.Array) -> jax.Array:
    of_critic = nn.softplus(-outputs["true"]) + nn.softplus(outputs["false"])
    return of_critic + nn.softplus(-outputs["to_deceive"])


def optimizer(rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    each = {"generator": optax.adam(rate, b1=0.5), "critic": optax.sgd(rate, momentum=0.9)}
    return optax.multi_transform(each, {"generator": "generator", "critic": "critic"})


def data() -> Dataset:
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 600)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    none = np.zeros(600, np.int32)
    return from_arrays(points[:500], none[:500], points[500:], none[500:])


task = TrainingTask(
    network=NetworkFunctions(init, apply),
    loss=loss,
    metrics={"to_deceive": lambda outputs, labels: outputs["to_deceive"]},
    exported=lambda outputs: {"score": outputs["true"]},
    data=data,
    optimizer=optimizer,
    learning_rate=0.001,
)
