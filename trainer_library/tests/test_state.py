from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.lazy import jax, models, optax, state, tiny
from trainyard_trainer.errors import CheckpointError

if TYPE_CHECKING:
    from conftest import Launcher


def adam() -> optax.GradientTransformation:
    return optax.adam(0.1)


def some_state(model: models.Model) -> state.State:
    """A state that differs from the initial one."""
    first = state.initial_state(model, adam(), seed=3)
    _, optimizer = jax.jit(adam().update)(first.params, first.optimizer)
    return jax.device_get(first._replace(optimizer=optimizer, step=np.int32(7)))  # type: ignore[no-any-return]


def shapes(model: models.Model) -> state.State:
    return state.state_shapes(model, adam())


def test_checkpoint_of_another_model_or_optimizer_is_refused() -> None:
    for other in (tiny.cnn(hidden=9), tiny.cnn(channels=(4, 4)), tiny.transformer()):
        arrays = state.to_arrays(some_state(other))
        with pytest.raises(CheckpointError, match="of another model; choose another --job-dir"):
            state.from_arrays(shapes(tiny.cnn()), arrays)
    momentum = state.state_shapes(tiny.cnn(), optax.sgd(0.1, momentum=0.9))
    with pytest.raises(CheckpointError, match="of another optimizer; choose another --job-dir"):
        state.from_arrays(momentum, state.to_arrays(some_state(tiny.cnn())))


def test_parameters_sha256_differs_by_one_bit() -> None:
    first = some_state(tiny.cnn())
    same, turned = (jax.tree.map(np.copy, first.params) for _ in range(2))
    turned["Conv_0"]["bias"][0] = -0.0
    assert state.parameters_sha256(first.params) == state.parameters_sha256(same)
    assert state.parameters_sha256(first.params) != state.parameters_sha256(turned)


@pytest.mark.parametrize("layout", ["fsdp", pytest.param("mirrored", marks=pytest.mark.long)])
def test_checkpoint_of_the_release_before_opens_with_the_same_parameters_in_any_layout(
    launcher: Launcher, tmp_path: Path, layout: str
) -> None:
    tests, job_dir = Path(__file__).parent, tmp_path / "job"
    environment = {"PYTHONPATH": f"{tests.parent}:{tests}", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    shutil.copytree(tests / "files/job-dir-0.2.0", job_dir)
    flags = ("--task", "own.regression", "--steps", "30", "--parallel", layout, "--job-dir", str(job_dir))
    trainer = launcher.alone(*flags, **environment)
    assert trainer.wait() == 0, trainer.stderr
    assert trainer.events("begin") == [{"event": "begin", "step": 30, "steps": 30}]
    assert trainer.parameters_sha256 == "e8e02705625453497e3ce80feb784914276f8c59db259a8a2efc014268584cd6"
