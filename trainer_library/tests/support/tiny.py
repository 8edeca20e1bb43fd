"""Networks and data that compile and train quickly."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from numpy.typing import NDArray

from trainyard_trainer.arguments import parse_arguments
from trainyard_trainer.data.datasets import Arrays, Dataset, Shard, Split
from trainyard_trainer.models.cnn import Cnn
from trainyard_trainer.models.model import Model, built_in
from trainyard_trainer.models.resnet import ResNet
from trainyard_trainer.models.transformer import Transformer
from trainyard_trainer.processes.cluster import ClusterSpec
from trainyard_trainer.training.experiment import Experiment
from trainyard_trainer.training.strategy import OneDevice


def cnn(hidden: int = 8, channels: tuple[int, ...] = (4,), dtype: Any = jnp.float32) -> Model:
    network = Cnn(10, channels=channels, hidden=hidden, dtype=dtype)
    return Model(built_in("cnn", network=network), (8, 8, 1), jnp.float32, 10)


class Dropping(nn.Module):
    """Two dense layers with dropout between them."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        hidden = nn.relu(nn.Dense(64)(images.reshape(images.shape[0], -1)))
        return nn.Dense(10)(nn.Dropout(0.5, deterministic=not train)(hidden))


def dropout() -> Model:
    return Model(built_in("cnn", network=Dropping()), (8, 8, 1), jnp.float32, 10)


class Normalized(nn.Module):
    """Two dense layers with BatchNorm between them."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        hidden = nn.Dense(8, use_bias=False)(images.reshape(images.shape[0], -1))
        return nn.Dense(10)(nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(hidden)))


def normalized() -> Model:
    return Model(built_in("cnn", network=Normalized()), (8, 8, 1), jnp.float32, 10)


def resnet() -> Model:
    network = ResNet(4, blocks=(1, 1), channels=4)
    return Model(built_in("resnet50", network=network), (16, 16, 3), jnp.uint8, 4)


def transformer() -> Model:
    network = Transformer(11, width=8, layers=1, heads=2)
    return Model(built_in("transformer", network=network), (6,), jnp.int32, 11)


def infer(model: Model, params: Any, statistics: Any, inputs: NDArray[Any]) -> NDArray[np.float32]:
    """The model's logits, compiled, as eager execution is slow."""

    def call(params: Any, statistics: Any, inputs: Any) -> Any:
        return model.infer(model.params.unravel(params), model.statistics.unravel(statistics), inputs)

    return np.asarray(jax.jit(call)(params, statistics, inputs))


def train(
    model: Model, params: Any, statistics: Any, inputs: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits and new statistics, compiled."""

    def call(params: Any, statistics: Any, inputs: Any) -> Any:
        return model.train(model.params.unravel(params), statistics, inputs, jax.random.key(0))

    logits, changed = jax.jit(call)(params, statistics, inputs)
    return np.asarray(logits), np.asarray(changed)


MODELS = {"cnn": cnn, "resnet50": resnet, "transformer": transformer}


def examples(model: Model, count: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Inputs [count, ...] and labels that the model accepts."""
    random = np.random.default_rng(seed)
    shape = (count, *model.input_shape)
    if model.input_dtype == jnp.int32:
        tokens = random.integers(model.classes, size=shape, dtype=np.int32)
        return tokens, np.roll(tokens, -1, axis=1)
    labels = random.integers(model.classes, size=count, dtype=np.int32)
    if model.input_dtype == jnp.uint8:
        return random.integers(256, size=shape, dtype=np.uint8), labels
    return random.random(shape, np.float32), labels


def experiment(*flags: str) -> Experiment:
    """The experiment of flags on one device, for 100 examples and a batch size of 10."""
    model = cnn()
    arguments = parse_arguments(["--batch-size", "10", *flags])
    split = Split((Arrays(*examples(model, 100)),), (100,))
    dataset = Dataset(split, split, model.input_shape, np.dtype(np.float32), (), "off")
    return Experiment(arguments, ClusterSpec(), OneDevice(), Shard(0, 1, 1), dataset, model, model)
