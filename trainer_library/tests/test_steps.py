"""The training and evaluation steps, on one device and, in another process, on two."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.lazy import models, optimizers, steps, strategy, tiny
from trainyard_trainer.data.datasets import Arrays, Shard, Split

TEMPLATE = Path(__file__).resolve().parents[1]


def test_evaluate_counts_each_example_once(model: models.Model) -> None:
    params, statistics = model.initial(0)
    inputs, labels = tiny.examples(model, 50)
    logits = tiny.infer(model, params, statistics, inputs)
    expected = float(np.mean(np.argmax(logits, axis=-1) == labels))
    split, variables = Split((Arrays(inputs, labels),), (50,)), (model.params.unravel(params), statistics)
    step = steps.make_evaluation_step(model, strategy.OneDevice())
    calls: list[None] = []
    evaluated = steps.evaluate(
        model, step, variables, split, 16, Shard(0, 1, 1), strategy.OneDevice(), lambda: calls.append(None)
    )
    assert len(calls) == -(-len(split) // 16)
    assert evaluated["accuracy"] == pytest.approx(expected)


ON_TWO_DEVICES = """
import sys
import jax, numpy as np, optax
sys.path[:0] = sys.argv[1:3]
from support import tiny
from trainyard_trainer.training import state, steps
from trainyard_trainer.training.strategy import Mirrored, OneDevice, Pmapped, make_strategy

assert isinstance(make_strategy("auto"), Mirrored) and isinstance(make_strategy("one-device"), OneDevice)
NORMS = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9))  # of all parameters
model = tiny.dropout()
inputs, labels = tiny.examples(model, 12)
weights = (np.arange(12) < 9).astype(np.float32)
ends = []
for strategy in (OneDevice(2), Mirrored(), Pmapped(), Mirrored(2), Pmapped(2)):
    replicas = strategy.local_replicas * strategy.accumulate
    pieces = (replicas, 12 // replicas)
    training = strategy.replicate(state.initial_state(model, NORMS, seed=0))
    step, sums = steps.make_train_step(model, NORMS, strategy), strategy.replicate(steps.no_sums(model))
    for _ in range(3):
        split = (strategy.put(a.reshape(*pieces, *a.shape[1:])) for a in (inputs, labels, weights))
        training, sums = step(training, sums, *split)
    copied = strategy.snapshot(training)
    assert all(len(leaf.devices()) == 1 for leaf in jax.tree.leaves(copied)), "of a gang, the chief alone copies"
    if replicas == 2:  # four pieces drop others
        ends.append(strategy.to_host(training))
    assert float(strategy.to_host(sums)[-1]) == 3 * 9 / replicas
for end in ends[1:]:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ends[0], end)
print("equal")
"""


ON_EIGHT_DEVICES = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
from flax import linen as nn
from jax.sharding import PartitionSpec
sys.path[:0] = sys.argv[1:3]
from trainyard_trainer.training import state, steps
from trainyard_trainer.models.model import Model, built_in
from trainyard_trainer.training.strategy import Mirrored, OneDevice, Pmapped, Sharded

class Network(nn.Module):
    noisy: bool

    @nn.compact
    def __call__(self, images, train):
        hidden = nn.Dense(128)(images.reshape(images.shape[0], -1))
        if self.noisy:  # both look at the whole batch
            hidden = nn.BatchNorm(use_running_average=not train)(hidden)
            hidden = nn.Dropout(0.5, deterministic=not train)(hidden)
        return nn.Dense(10)(nn.relu(hidden))

RULES = [("Dense_0/kernel$", PartitionSpec(None, "tensor")), ("Dense_1/kernel$", PartitionSpec("tensor"))]
MESHES = ([("fsdp", 8)], [("fsdp", 4)], [("data", 8)], [("data", 2), ("fsdp", 2), ("tensor", 2)])
MOMENTUM = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9))  # of all parameters
random = np.random.default_rng(0)
inputs, labels = random.random((32, 8, 8, 1), np.float32), random.integers(10, size=32).astype(np.int32)
weights = (np.arange(32) < 27).astype(np.float32)
for noisy in (False, True):
    model = Model(built_in("cnn", network=Network(noisy)), (8, 8, 1), jnp.float32, 10)
    ends = []
    strategies = [OneDevice(), *(Sharded(sizes, 1, RULES) for sizes in MESHES)]
    for strategy in strategies if noisy else [*strategies, Sharded([("fsdp", 4)], 2), Mirrored(), Pmapped()]:
        replicas = strategy.local_replicas * strategy.accumulate
        training = strategy.initialize(lambda loaded: state.initial(model, MOMENTUM, 0, loaded), {})
        step, sums = steps.make_train_step(model, MOMENTUM, strategy), strategy.replicate(steps.no_sums(model))
        for _ in range(3):
            split = (strategy.put(a.reshape(replicas, 32 // replicas, *a.shape[1:])) for a in (inputs, labels, weights))
            training, sums = step(training, sums, *split)
        ends.append(strategy.to_host((training.params, training.statistics)))
        if isinstance(strategy, Sharded):
            kernel, momentum = training.params["Dense_0"]["kernel"], training.optimizer[1][0].trace["Dense_0"]["kernel"]
            parts = strategy._sizes["fsdp"] * strategy._sizes["tensor"]
            for leaf in (kernel, momentum):
                assert leaf.addressable_data(0).size * parts == leaf.size, (strategy._sizes, leaf.sharding)
    for end in ends[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ends[0], end)
print("equal")
"""


@pytest.mark.parametrize(("program", "devices"), [(ON_TWO_DEVICES, 2), (ON_EIGHT_DEVICES, 8)], ids=["two", "eight"])
def test_replicas_pieces_and_layouts_of_the_state_do_the_same_step(program: str, devices: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, str(TEMPLATE), str(TEMPLATE / "tests")],
        env={"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "equal\n", done.stderr


def test_learning_rate_grows_with_the_global_batch() -> None:
    expected: dict[optimizers.Scaling, float] = {"linear": 0.08, "sqrt": 0.04, "none": 0.02}
    scaled = {way: optimizers.scale_learning_rate(0.02, way, batch_size=64, reference=16) for way in expected}
    assert scaled == pytest.approx(expected)


def rates(count: int, ahead: int = 0) -> list[float]:
    """The updates of a constant gradient of 1 by ResNet-50's momentum optimizer, step by step."""
    momentum = functools.partial(optimizers.OPTIMIZERS["momentum"], decay=0.0)
    optimizer = optimizers.make_optimizer(momentum, peak=1.0, start=0.1, steps=100, warmup=0.1, ahead=ahead)
    moved, optimizer_state = [], optimizer.init(np.zeros(1))
    for step in range(count):
        gradient = np.ones(1) if step == 0 else np.zeros(1)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state)
        moved.append(-float(updates[0]) / (0.9 ** (step + 1) + (step == 0)))
    return moved


def test_learning_rate_warms_up_falls_to_nothing_and_continues_on_another_number_of_replicas() -> None:
    moved = rates(101)
    assert moved[0] == pytest.approx(0.1)
    assert moved[10] == pytest.approx(1.0, rel=1e-3)
    assert moved[:11] == sorted(moved[:11])
    assert moved[10:] == sorted(moved[10:], reverse=True)
    assert moved[100] == pytest.approx(0.0, abs=1e-6)
    assert rates(3, ahead=50) == pytest.approx(moved[50:53], rel=1e-3)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_one_ahead_gives_the_same_items_each_made_before_the_last_is_used(count: int) -> None:
    made: list[int] = []

    def make() -> Any:
        for number in range(count):
            made.append(number)
            yield number

    seen = []
    for number in strategy.prefetch(make()):
        assert len(made) == min(number + 2, count)
        seen.append(number)
    assert seen == list(range(count))
