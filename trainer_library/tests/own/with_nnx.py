"""A network of flax.nnx: its parameters are the tree, the rest of the module is the function."""

import jax
import optax
from flax import nnx

from trainyard_trainer.data.datasets import digits
from trainyard_trainer.models.task import NetworkFunctions, PyTree, TrainingTask


class NnxNetwork(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 32, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.out = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.norm(self.hidden(images.reshape(images.shape[0], -1)))
        return self.out(nnx.relu(x))


def init(key: jax.Array, images: jax.Array) -> tuple[PyTree, PyTree]:
    network = NnxNetwork(nnx.Rngs(key))
    return nnx.to_pure_dict(nnx.state(network, nnx.Param)), nnx.to_pure_dict(nnx.state(network, nnx.BatchStat))


def apply(params: PyTree, statistics: PyTree, images: jax.Array, key: jax.Array | None) -> tuple[PyTree, PyTree]:
    network = nnx.eval_shape(lambda: NnxNetwork(nnx.Rngs(0)))
    nnx.update(network, params, statistics)
    network.set_attributes(use_running_average=key is None)
    logits = network(images)
    return logits, nnx.to_pure_dict(nnx.state(network, nnx.BatchStat))


task = TrainingTask(network=NetworkFunctions(init, apply), data=digits, optimizer=optax.adam, learning_rate=0.004)
