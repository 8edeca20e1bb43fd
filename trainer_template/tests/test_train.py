"""The step and the state, in this process, on its one device."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import jax_utils

from trainer import data, report, train
from trainer.distribute import Cluster
from trainer.model import Cnn
from trainer.saving import Saver
from trainer.task import parse_arguments

SMALL = Cnn(channels=(4,), hidden=8)


@pytest.fixture
def saver(tmp_path: Path) -> Saver:
    return Saver(str(tmp_path), process_id=0, keep=3)


def start(saver: Saver, model: Cnn = SMALL, seed: int = 0) -> tuple[train.State, train.Position]:
    return train.start_state(model, train.make_optimizer(0.01, 1, 10), (8, 8, 1), seed, saver, Cluster())


def test_start_state_without_a_checkpoint_is_drawn_by_the_seed(saver: Saver) -> None:
    state, position = start(saver)
    assert position == train.Position(0, 0, 0)
    jax.tree.map(np.testing.assert_array_equal, state, start(saver)[0])
    other, _ = start(saver, seed=1)
    assert (state.params["Dense_0"]["kernel"] != other.params["Dense_0"]["kernel"]).any()


def test_start_state_with_a_checkpoint_is_what_was_saved(saver: Saver) -> None:
    state, _ = start(saver, seed=3)
    saver.save_checkpoint(7, train.checkpoint(state, train.Position(7, 1, 20)))
    restored, position = start(saver)
    assert position == train.Position(7, 1, 20)
    jax.tree.map(np.testing.assert_array_equal, restored, state)


@pytest.mark.parametrize("other", [Cnn(channels=(4,), hidden=9), Cnn(channels=(4, 4), hidden=8)])
def test_start_state_with_a_checkpoint_of_another_model_says_so(saver: Saver, other: Cnn) -> None:
    saver.save_checkpoint(7, train.checkpoint(start(saver)[0], train.Position()))
    with pytest.raises(ValueError, match="of another model; choose another --job-dir"):
        start(saver, other)


def test_train_step_takes_no_notice_of_padding(saver: Saver) -> None:
    state = start(saver)[0]
    step = train.make_train_step(SMALL, train.make_optimizer(0.01, 1, 10))
    random = np.random.default_rng(0)
    images = random.random((1, 6, 8, 8, 1), np.float32)
    labels = np.arange(6, dtype=np.int32)[None]
    weights = np.array([[1, 1, 1, 1, 0, 0]], np.float32)
    padded, sums = step(jax_utils.replicate(state), images, labels, weights)
    images[0, 4:], labels[0, 4:] = 1, 0
    otherwise, _ = step(jax_utils.replicate(state), images, labels, weights)
    jax.tree.map(np.testing.assert_array_equal, padded, otherwise)
    assert train.on_host(sums).examples == 4


def test_evaluate_counts_each_example_once(
    saver: Saver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "EVALUATION_BATCH", 64)
    held_out = data.load().held_out
    state = start(saver)[0]
    logits = SMALL.apply({"params": state.params}, held_out.images)
    expected = float(np.mean(np.argmax(logits, axis=-1) == held_out.labels))
    step = train.make_evaluation_step(SMALL)
    replicated = jax_utils.replicate(state)
    accuracy = train.evaluate(step, replicated, train.Position(9, 1), held_out, data.Share(0, 1, 1))
    assert accuracy == pytest.approx(expected)
    assert '"event": "evaluation", "step": 9, "epoch": 1' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (train.Position(0, 0, 0), 8),
        (train.Position(1, 0, 32), 7),
        (train.Position(4, 1, 0), 4),
        (train.Position(5, 1, 10), 3),  # as after a change of the batch: 90 examples left
        (train.Position(8, 2, 0), 0),
        (train.Position(8, 7, 0), 0),
    ],
)
def test_steps_left_are_those_to_the_last_epoch(position: train.Position, expected: int) -> None:
    arguments = parse_arguments(["--epochs", "2", "--batch-size", "16"])
    assert train.steps_left(position, arguments, 100, data.Share(0, 2, 1)) == expected


def sums(loss: float, correct: float, examples: float) -> Any:
    return report.Sums(*(jax.numpy.array([value]) for value in (loss, correct, examples)))


def test_progress_reports_means_since_the_line_before(capsys: pytest.CaptureFixture[str]) -> None:
    progress = report.Progress(steps=3, epochs=1, every=2)
    progress.start_epoch()
    for step, step_sums in enumerate([sums(6, 1, 4), sums(2, 3, 4), sums(1, 1, 2)], start=1):
        progress.add(step, 1, 8, step_sums)
    progress.flush()
    progress.flush()
    first, second = capsys.readouterr().out.splitlines()
    assert '"step": 2, "steps": 3, "epoch": 1, "epochs": 1, "loss": 1.0, "accuracy": 0.5,' in first
    assert '"step": 3, "steps": 3, "epoch": 1, "epochs": 1, "loss": 0.5, "accuracy": 0.5,' in second


def test_progress_with_a_loss_that_is_no_number_fails() -> None:
    progress = report.Progress(steps=3, epochs=1, every=1)
    with pytest.raises(FloatingPointError, match="The loss is nan at step 1"):
        progress.add(1, 1, 8, sums(float("nan"), 0, 4))
