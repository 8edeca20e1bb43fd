"""The number of steps and epochs of a training, and its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.lazy import experiment, export, optax, state, strategy, tiny
from trainer.arguments import parse_arguments
from trainer.cluster import ClusterSpec
from trainer.data.datasets import Arrays, Dataset, Shard, Split
from trainer.output.saving import Saver


@pytest.mark.parametrize(
    ("flags", "position", "left", "epochs"),
    [
        ("--epochs 3", (0, 0, 0), 30, 3),
        ("--epochs 3", (4, 1, 40), 16, 3),
        ("--epochs 3 --steps 9", (4, 1, 40), 5, 3),
        ("--epochs 3 --steps 99", (4, 1, 40), 16, 3),
        ("--steps 25", (0, 0, 0), 25, 3),
        ("--steps 25", (20, 2, 0), 5, 3),
        ("--steps 25", (20, 8, 0), 5, 9),  # with four replicas an epoch had fewer steps
        ("--steps 25", (20, 8, 70), 5, 10),
        ("--steps 25", (25, 10, 0), 0, 11),
    ],
)
def test_steps_left_of_a_training_are_those_of_the_flags_on_any_number_of_replicas_before(
    flags: str, position: tuple[int, int, int], left: int, epochs: int
) -> None:
    here = state.TrainingPosition(*position)
    assert of_flags(*flags.split()).steps_left(here) == left
    assert of_flags(*flags.split()).epochs(here) == epochs


def of_flags(*flags: str) -> experiment.Experiment:
    """The experiment of flags, for 100 examples and a batch size of 10."""
    split = Split((Arrays(np.zeros((100, 8, 8, 1), np.float32), np.zeros(100, np.int32)),), (100,))
    dataset = Dataset(split, split, (8, 8, 1), np.dtype(np.float32), ())
    arguments = parse_arguments(["--batch-size", "10", *flags])
    return experiment.Experiment(
        arguments, ClusterSpec(), strategy.OneDevice(), Shard(0, 1, 1), dataset, tiny.cnn()
    )


def test_model_that_cannot_be_made_of_what_is_trained_is_a_warning_that_names_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended, saver = of_flags(), Saver(str(tmp_path), 0, 3)
    trained = state.initial_state(ended.model, optax.sgd(0.1), 0)
    function = export.ModelFunction(b"", {"labels": object()})
    ended.save_model(saver, function, trained, state.START, {"loss": 0.0})
    assert "There is no model, as it could not be made" in caplog.text
    assert "object is not JSON serializable" in caplog.text
