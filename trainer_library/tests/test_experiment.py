"""The number of steps and epochs of a training, and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.lazy import export, optax, state, tiny
from trainyard_trainer.output.saving import Saver

STEPS_LEFT = {
    ("--epochs 3", (0, 0, 0)): (30, 3),
    ("--epochs 3", (4, 1, 40)): (16, 3),
    ("--epochs 3 --steps 9", (4, 1, 40)): (5, 3),
    ("--epochs 3 --steps 99", (4, 1, 40)): (16, 3),
    ("--steps 25", (0, 0, 0)): (25, 3),
    ("--steps 25", (20, 2, 0)): (5, 3),
    ("--steps 25", (20, 8, 0)): (5, 9),  # with four replicas an epoch had fewer steps
    ("--steps 25", (20, 8, 70)): (5, 10),
    ("--steps 25", (25, 10, 0)): (0, 11),
}


def test_steps_left_of_a_training_are_those_of_the_flags_on_any_number_of_replicas_before() -> None:
    left = {}
    for flags, position in STEPS_LEFT:
        here, training = state.TrainingPosition(*position), tiny.experiment(*flags.split())
        left[flags, position] = (training.steps_left(here), training.epochs(here))
    assert left == STEPS_LEFT


def test_model_that_cannot_be_made_of_what_is_trained_is_a_warning_that_names_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended, saver = tiny.experiment(), Saver(str(tmp_path), 0, 3)
    trained = state.initial_state(ended.model, optax.sgd(0.1), 0)
    function = export.ModelFunction(b"", {"labels": object()})
    ended.save_model(saver, function, trained.params, trained.statistics, state.START, {"loss": 0.0})
    assert "There is no model, as it could not be made" in caplog.text
    assert "object is not JSON serializable" in caplog.text
