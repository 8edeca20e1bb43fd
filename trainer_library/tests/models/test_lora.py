"""--lora: the outputs and gradients of kernels with A B added, without a gradient of a kernel's size."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.lazy import jax, jnp, lora, models, optax, optimizers, state, steps, strategy, tasks, tiny

RANK = 3
WIDTH = 256  # of a kernel that is far larger than all else in a step
BATCH = 4


def drawn(shapes: Any, seed: int) -> Any:
    """Arrays of these shapes, where initial ones would be zeros."""
    leaves, structure = jax.tree.leaves(shapes), jax.tree.structure(shapes)
    random = np.random.default_rng(seed)
    arrays = [0.2 * random.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]
    return jax.tree.unflatten(structure, arrays)


def check_agreement(network: Any, inputs: Any, *, rtol: float = 1e-5, **adapted: Any) -> None:
    """Compare outputs and gradients with those of a network whose kernels have A B added."""
    with_lora = lora.with_lora(network, RANK, "kernel", **adapted)
    params, statistics = jax.eval_shape(with_lora.init, jax.random.key(0), inputs)
    params, statistics = drawn(params, 1), jax.tree.map(abs, drawn(statistics, 2))

    def run(apply: Callable[..., Any], whole: Callable[[Any], Any]) -> Any:
        def loss(matrices: Any) -> Any:
            given = {"base": params["base"], "lora": matrices}
            outputs, _ = apply(whole(given), statistics, inputs, jax.random.key(0))
            return jnp.sum(jnp.sin(outputs.astype(jnp.float32))), outputs

        gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(params["lora"])
        return [outputs, *jax.tree.leaves(gradients)]

    pairs = zip(run(with_lora.apply, lambda given: given), run(network.apply, lora.merged), strict=True)
    for number, (ours, expected) in enumerate(pairs):
        ours, expected = (np.asarray(array, np.float32) for array in (ours, expected))
        assert np.abs(expected).max() > 0, number
        np.testing.assert_allclose(ours, expected, atol=rtol * np.abs(expected).max())


def test_layers_compute_what_kernels_with_the_matrices_added_would_and_others_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from flax import linen as nn

    class Direct(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = nn.Conv(6, (3, 3), strides=2, name="strided")(x)
            x = nn.Conv(8, 2, padding="VALID", kernel_dilation=2, use_bias=False, name="narrow")(x)
            x = x.reshape(len(x), -1, 8)
            x = nn.MultiHeadDotProductAttention(2, name="attention")(x)
            shared = nn.Dense(8, name="shared")
            x = shared(nn.relu(shared(x)))
            return nn.DenseGeneral((3, 2), axis=(-2, -1), name="general")(x)

    class Others(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            remat: Any = nn.remat
            x = remat(nn.Dense)(12, name="again")(x)
            x = nn.WeightNorm(nn.Dense(12, name="normed"))(x)
            x = nn.Conv(12, 3, feature_group_count=2, name="grouped")(x)
            scan: Any = nn.scan
            stack = scan(
                lambda layer, x, _: (layer(x), None), variable_axes={"params": 0}, split_rngs={"params": True}, length=2
            )
            x, _ = stack(nn.Dense(12, name="stacked"), x, None)
            x = nn.Einsum((12, 4), "...i,io->...o", name="sum")(x)
            tied = nn.Dense(5, use_bias=False, name="tied")
            return tied(x) @ tied.variables["params"]["kernel"].T

    images = np.random.default_rng(0).random((2, 9, 9, 3), np.float32)
    with caplog.at_level(logging.INFO):
        check_agreement(tasks.linen(Direct()), images)
        assert "whole gradient" not in caplog.text
        check_agreement(tasks.linen(Others()), images.reshape(2, 9, 27))
    assert "computes the whole gradient of 5 kernels (again/kernel, grouped/kernel, normed/kernel, ...)" in caplog.text


def test_network_in_bfloat16_agrees_to_its_rounding_by_its_layers(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny.cnn()
    inputs = np.random.default_rng(0).random((4, *model.input_shape), np.float32)
    with caplog.at_level(logging.INFO):
        check_agreement(tasks.in_bfloat16(model.network), inputs, rtol=0.05, dtype="bfloat16")
    assert "whole gradient" not in caplog.text


@pytest.mark.parametrize("name", ["OneDevice", "Mirrored", "Sharded"])
def test_step_holds_no_gradient_of_a_kernel_s_size(name: str) -> None:
    from flax import linen as nn

    class Wide(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            return nn.Dense(WIDTH, use_bias=False)(nn.relu(nn.Dense(WIDTH, use_bias=False)(x)))

    network = tasks.linen(Wide())
    adapted = lora.with_lora(network, RANK, "kernel$")
    added = adapted._replace(apply=lambda params, *rest: network.apply(lora.merged(params), *rest))
    own = tasks.TrainingTask(network, loss=lambda outputs, labels: jnp.mean(outputs**2, -1), metrics={})

    def temporary(network: Any, trains: Callable[[str], bool]) -> int:
        """Bytes beside the arguments and results of a step, as XLA plans it."""
        model = models.Model(dataclasses.replace(own, network=network), (WIDTH,), jnp.float32, 0)
        placed: Any = strategy.Sharded([("fsdp", 1)]) if name == "Sharded" else getattr(strategy, name)()
        optimizer = optimizers.only(optax.sgd(0.1), trains)
        step: Any = steps.make_train_step(model, optimizer, placed, trains=trains)
        batch = np.zeros((BATCH, WIDTH), np.float32), np.zeros(BATCH, np.int32), np.ones(BATCH, np.float32)
        shapes = state.state_shapes(model, optimizer)
        compiled = step.lower(shapes, np.zeros(2, np.float32), *batch).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    kernel = 4 * math.prod((WIDTH, WIDTH))
    assert temporary(added, lambda name: name.startswith("lora/")) >= kernel
    assert temporary(adapted, lambda name: name.startswith("lora/")) < kernel / 2
