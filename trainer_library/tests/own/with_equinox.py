"""A network of Equinox with dropout: its arrays are the tree of parameters, the rest of the module is the function."""

import equinox as eqx
import jax
import optax

from trainyard_trainer.data.datasets import digits
from trainyard_trainer.models.task import NetworkFunctions, PyTree, TrainingTask


class EquinoxNetwork(eqx.Module):
    hidden: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key)
        self.hidden = eqx.nn.Linear(64, 32, key=keys[0])
        self.dropout = eqx.nn.Dropout(0.1)
        self.out = eqx.nn.Linear(32, 10, key=keys[1])

    def __call__(self, image: jax.Array, key: jax.Array | None) -> jax.Array:
        x = jax.nn.relu(self.hidden(image.ravel()))
        return self.out(self.dropout(x, key=key, inference=key is None))


def init(key: jax.Array, images: jax.Array) -> tuple[PyTree, PyTree]:
    del images
    return eqx.filter(EquinoxNetwork(key), eqx.is_inexact_array), {}


def apply(params: PyTree, statistics: PyTree, images: jax.Array, key: jax.Array | None) -> tuple[PyTree, PyTree]:
    shapes = eqx.filter_eval_shape(EquinoxNetwork, jax.random.key(0))
    network = eqx.combine(params, eqx.filter(shapes, lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct)))
    if key is None:
        return jax.vmap(lambda image: network(image, None))(images), statistics
    return jax.vmap(network)(images, jax.random.split(key, len(images))), statistics


task = TrainingTask(network=NetworkFunctions(init, apply), data=digits, optimizer=optax.adam, learning_rate=0.01)
