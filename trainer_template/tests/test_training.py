"""The trainer as a service runs it: real processes, their environment, their output, their exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainer.storage import open_folder

if TYPE_CHECKING:
    from conftest import Bucket, Launcher, Trainer

# A trainer to which something happens in the middle of an epoch, which is not its first.
TRAINER_WITH_AN_EVENT = """
import os, signal
from trainer import data, task

batches, read = data.batches, 0

def interrupted(*args):
    global read
    for batch in batches(*args):
        read += 1
        if read == 100:
            {event}
        yield batch

data.batches = interrupted
task.main()
"""
FAILS = TRAINER_WITH_AN_EVENT.format(event="raise OSError('the disk is gone')")
GETS_SIGTERM = TRAINER_WITH_AN_EVENT.format(event="os.kill(os.getpid(), signal.SIGTERM)")


@pytest.fixture(scope="module")
def trained(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path]:
    """Trained alone with the flags' defaults, and its job directory."""
    job_dir = tmp_path_factory.mktemp("alone")
    trainer = launcher.alone("--job-dir", str(job_dir))
    assert trainer.wait() == 0, trainer.stderr
    return trainer, job_dir


@pytest.fixture(scope="module")
def trained_pair(launcher: Launcher, bucket: Bucket) -> tuple[tuple[Trainer, Trainer], str]:
    """Chief and worker trained with the flags' defaults, and their job directory in the bucket."""
    job_dir = f"{bucket.url}/pair"
    pair = launcher.pair("--job-dir", job_dir)
    assert [trainer.wait() for trainer in pair] == [0, 0], [trainer.stderr for trainer in pair]
    return pair, job_dir


def test_alone_learns_the_digits_and_says_where_the_model_is(trained: tuple[Trainer, Path]) -> None:
    trainer, job_dir = trained
    assert trainer.held_out_accuracy >= 0.97
    assert trainer.events("saved") == [{"event": "saved", "model": str(job_dir / "model")}]
    assert len(trainer.parameters_sha256) == 64
    assert sorted(path.name for path in job_dir.iterdir()) == ["checkpoints", "model"]


def test_alone_reports_every_ten_steps_and_at_the_end_of_each_epoch(trained: tuple[Trainer, Path]) -> None:
    progress = trained[0].events("progress")
    every_ten = set(range(10, 451, 10))
    assert [line["step"] for line in progress] == sorted(every_ten | {90, 180, 270, 360, 450})
    assert {line["steps"] for line in progress} == {450}
    assert [line["epoch"] for line in progress] == [-(-line["step"] // 90) for line in progress]
    for line in progress:
        assert set(line) == {
            "event", "step", "steps", "epoch", "epochs", "loss", "accuracy", "examples_per_second"
        }  # fmt: skip
        assert line["examples_per_second"] > 0
    assert [line["epoch"] for line in trained[0].events("evaluation")] == [1, 2, 3, 4, 5]


def test_predict_in_a_fresh_process_knows_the_digits(
    trained: tuple[Trainer, Path], launcher: Launcher
) -> None:
    predict = launcher.alone("--model", str(trained[1] / "model"), command=("-m", "trainer.predict"))
    assert predict.wait() == 0, predict.stderr
    *digits, last = predict.stdout.splitlines()
    right = sum(line.endswith(": right") for line in digits)
    assert len(digits) == 10
    assert last == f"{right} of 10 right"
    assert right >= 9


def test_two_local_devices_learn_the_digits(launcher: Launcher, tmp_path: Path) -> None:
    flags = "--xla_force_host_platform_device_count=2"
    trainer = launcher.alone("--job-dir", str(tmp_path), XLA_FLAGS=flags)
    assert trainer.wait() == 0, trainer.stderr
    assert trainer.held_out_accuracy >= 0.97
    assert trainer.events("done")[0]["steps"] == 225  # half as many as alone: both devices take part


def test_chief_and_worker_learn_the_digits_and_agree(
    trained_pair: tuple[tuple[Trainer, Trainer], str],
) -> None:
    (chief, worker), job_dir = trained_pair
    assert chief.held_out_accuracy >= 0.97
    assert chief.parameters_sha256 == worker.parameters_sha256
    assert chief.events("saved") == [{"event": "saved", "model": f"{job_dir}/model"}]
    assert worker.events("saved") == worker.events("evaluation") == []
    steps = [line["step"] for line in chief.events("progress")]
    assert [line["step"] for line in worker.events("progress")] == steps


def test_chief_and_worker_leave_the_chiefs_files_alone_in_the_bucket(
    trained_pair: tuple[tuple[Trainer, Trainer], str], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    folder = open_folder(trained_pair[1])
    assert folder.children() == ["checkpoints", "model"]
    assert len(folder.folder("checkpoints").children("step-")) == 3
    assert len(folder.folder("model").children()) == 2


def test_same_command_after_the_end_trains_no_more(trained: tuple[Trainer, Path], launcher: Launcher) -> None:
    trainer, job_dir = trained
    again = launcher.alone("--job-dir", str(job_dir))
    assert again.wait() == 0, again.stderr
    assert again.events("progress") == []
    assert again.held_out_accuracy == trainer.held_out_accuracy
    assert again.parameters_sha256 == trainer.parameters_sha256


def test_sigterm_alone_saves_and_the_same_command_goes_on_bit_for_bit(
    trained: tuple[Trainer, Path], launcher: Launcher, tmp_path: Path
) -> None:
    stopped = launcher.alone("--job-dir", str(tmp_path), command=("-c", GETS_SIGTERM))
    assert stopped.wait() == 0, stopped.stderr
    (at,) = stopped.events("stopped")
    assert 90 < at["step"] < 180
    assert at["steps"] == 450
    assert stopped.events("done") == stopped.events("saved") == []

    resumed = launcher.alone("--job-dir", str(tmp_path))
    assert resumed.wait() == 0, resumed.stderr
    assert resumed.events("progress")[0]["step"] - at["step"] in range(1, 11)
    assert resumed.parameters_sha256 == trained[0].parameters_sha256


def test_sigterm_to_a_worker_stops_all_at_one_step_with_its_checkpoint(
    launcher: Launcher, tmp_path: Path
) -> None:
    pair = launcher.pair("--epochs", "10000", "--keep", "1", "--job-dir", str(tmp_path))
    for trainer in pair:
        trainer.wait_for("progress")
    pair[1].terminate()
    assert [trainer.wait() for trainer in pair] == [0, 0], [trainer.stderr for trainer in pair]
    (at,) = pair[0].events("stopped")
    assert pair[1].events("stopped") == [at]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*")
    assert checkpoint.name.startswith(f"step-{at['step']:08d}-")


def test_exception_in_a_worker_ends_all_and_the_same_command_goes_on_bit_for_bit(
    trained_pair: tuple[tuple[Trainer, Trainer], str], launcher: Launcher, tmp_path: Path
) -> None:
    chief, worker = launcher.pair("--job-dir", str(tmp_path), worker=("-c", FAILS))
    assert worker.wait() == 1
    assert chief.wait() != 0
    assert "OSError: the disk is gone" in worker.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "workertemp_1"]

    resumed = launcher.pair("--job-dir", str(tmp_path))
    assert [trainer.wait() for trainer in resumed] == [0, 0], [trainer.stderr for trainer in resumed]
    assert resumed[0].events("evaluation")[0]["epoch"] == 3
    hashes = {trainer.parameters_sha256 for trainer in (*resumed, *trained_pair[0])}
    assert len(hashes) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "model"]


def test_role_that_is_not_there_yet_ends_with_2_and_says_so(launcher: Launcher, tmp_path: Path) -> None:
    tf_config = (
        '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "evaluator", "index": 0}}'
    )
    trainer = launcher.alone("--job-dir", str(tmp_path), TF_CONFIG=tf_config)
    assert trainer.wait() == 2
    assert "evaluator 0, a role that this trainer does not have" in trainer.stderr
    assert "Traceback" not in trainer.stderr
