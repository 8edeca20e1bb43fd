import jax
import numpy as np
import optax
import pytest

import tiny
from trainer import state
from trainer.models import Model
from trainer.state import CheckpointError, Position, State

ADAM = optax.adam(0.1)


def some_state(model: Model) -> State:
    """Not what a training begins with."""
    first = state.first_state(model, ADAM, seed=3)
    _, optimizer = ADAM.update(model.params.join(first.params), first.optimizer)
    return jax.device_get(first._replace(optimizer=optimizer))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", tiny.MODELS)
def test_checkpoint_restores_what_was_saved(name: str) -> None:
    model = tiny.MODELS[name]()
    saved = some_state(model)
    restored, position = state.restore(model, ADAM, state.checkpoint(model, saved, Position(7, 1, 20)))
    assert position == Position(7, 1, 20)
    assert jax.tree.structure(restored) == jax.tree.structure(saved)  # type: ignore[operator]  # has no stub
    jax.tree.map(np.testing.assert_array_equal, restored, saved)


OTHERS = {
    "wider": lambda: tiny.cnn(hidden=9),
    "deeper": lambda: tiny.cnn(channels=(4, 4)),
    "another": tiny.transformer,
}


@pytest.mark.parametrize("name", OTHERS)
def test_checkpoint_of_another_model_says_so(name: str) -> None:
    other = OTHERS[name]()
    data = state.checkpoint(other, some_state(other), Position())
    with pytest.raises(CheckpointError, match="of another model; choose another --job-dir"):
        state.restore(tiny.cnn(), ADAM, data)


def test_checkpoint_of_another_optimizer_says_so() -> None:
    model = tiny.cnn()
    data = state.checkpoint(model, some_state(model), Position())
    with pytest.raises(CheckpointError, match="of another optimizer; choose another --job-dir"):
        state.restore(model, optax.sgd(0.1, momentum=0.9), data)


def test_parameters_sha256_differs_by_one_bit() -> None:
    first = some_state(tiny.cnn())
    same, turned = (jax.tree.map(np.copy, first.params) for _ in range(2))
    turned["Conv_0"]["bias"][0] = -0.0
    assert state.parameters_sha256(first) == state.parameters_sha256(first._replace(params=same))
    assert state.parameters_sha256(first) != state.parameters_sha256(first._replace(params=turned))
