"""A classifier with dropout and BatchNorm, by AdamW with weight decay of the matrices alone."""

import jax
import optax
from flax import linen as nn

from trainer.data.datasets import digits
from trainer.models.task import TrainingTask, linen


class DropoutNetwork(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        x = nn.Dense(32, use_bias=False)(images.reshape(images.shape[0], -1))
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        return nn.Dense(10)(nn.Dropout(0.2, deterministic=not train)(x))


def decayed(params: optax.Params) -> optax.Params:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


task = TrainingTask(
    network=linen(DropoutNetwork()),
    data=digits,
    optimizer=lambda rate: optax.adamw(rate, weight_decay=0.01, mask=decayed),
    learning_rate=0.004,
)
