"""A network for images of --data, which has as many classes as the folder and is for one size of images."""

import jax
from flax import linen as nn

from trainyard_trainer.models.task import DataSpec, NetworkFunctions, TrainingTask, linen


class PhotoNetwork(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        x = nn.relu(nn.Conv(8, (3, 3))(images - 0.5))
        return nn.Dense(self.classes)(5 * x.mean(axis=(1, 2)))


def network(data: DataSpec) -> NetworkFunctions:
    return linen(PhotoNetwork(data.classes))


task = TrainingTask(network, input_shape=(12, 12, 3), learning_rate=0.05)
