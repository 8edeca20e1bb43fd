from __future__ import annotations

import numpy as np
import pytest

from lazy import jax, models, optax, state, tiny


def adam() -> optax.GradientTransformation:
    return optax.adam(0.1)


def some_state(model: models.Model) -> state.State:
    """A state that differs from the initial one."""
    first = state.initial_state(model, adam(), seed=3)
    _, optimizer = adam().update(model.params.ravel(first.params), first.optimizer)
    return jax.device_get(first._replace(optimizer=optimizer))  # type: ignore[no-any-return]


def test_checkpoint_restores_what_was_saved(model: models.Model) -> None:
    saved = some_state(model)
    restored, position = state.restore(
        model, adam(), state.checkpoint(model, saved, state.TrainingPosition(7, 1, 20))
    )
    assert position == state.TrainingPosition(7, 1, 20)
    assert jax.tree.structure(restored) == jax.tree.structure(saved)  # type: ignore[operator]  # has no stub
    jax.tree.map(np.testing.assert_array_equal, restored, saved)


OTHERS = {
    "wider": lambda: tiny.cnn(hidden=9),
    "deeper": lambda: tiny.cnn(channels=(4, 4)),
    "another": lambda: tiny.transformer(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_checkpoint_of_another_model_is_refused(name: str) -> None:
    other = OTHERS[name]()
    data = state.checkpoint(other, some_state(other), state.TrainingPosition())
    with pytest.raises(state.CheckpointError, match="of another model; choose another --job-dir"):
        state.restore(tiny.cnn(), adam(), data)


def test_checkpoint_of_another_optimizer_is_refused() -> None:
    model = tiny.cnn()
    data = state.checkpoint(model, some_state(model), state.TrainingPosition())
    with pytest.raises(state.CheckpointError, match="of another optimizer; choose another --job-dir"):
        state.restore(model, optax.sgd(0.1, momentum=0.9), data)


def test_parameters_sha256_differs_by_one_bit() -> None:
    first = some_state(tiny.cnn())
    same, turned = (jax.tree.map(np.copy, first.params) for _ in range(2))
    turned["Conv_0"]["bias"][0] = -0.0
    assert state.parameters_sha256(first) == state.parameters_sha256(first._replace(params=same))
    assert state.parameters_sha256(first) != state.parameters_sha256(first._replace(params=turned))
