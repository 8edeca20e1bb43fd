"""Trainings in real processes: environment, output, exit codes, interruption and resumption."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pexpect
import pytest

from support.addresses import free_addresses
from support.events import gets, with_event
from trainyard_trainer.data.datasets import digits
from trainyard_trainer.storage import open_folder

if TYPE_CHECKING:
    from conftest import Bucket, Launcher, Trainer

# Programs that a shell starts in the background ignore the signal.
INTERRUPTIBLE = (
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from trainyard_trainer import task; task.main()",
)
GETS_SIGTERM_EARLY = gets("SIGTERM", 20)
GETS_SIGTERM_AND_WAITS = with_event("os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait()", 1, "steps")
GETS_SIGTERM_AND_WAITS_FOR_DATA = """
import os, signal, threading
from trainyard_trainer import task
from trainyard_trainer.training import evaluator

def prepare(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()

evaluator.prepare = prepare
task.main()
"""


@pytest.fixture(scope="module")
def trained(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path]:
    """A training of one process with default flags, and its job directory, beside which is the tuning metric."""
    job_dir = tmp_path_factory.mktemp("alone") / "job"
    environment = {"CLOUD_ML_HP_METRIC_FILE": f"{job_dir.parent}/output.metrics", "CLOUD_ML_TRIAL_ID": "3"}
    trainer = launcher.alone("--job-dir", str(job_dir), **environment)
    assert trainer.wait() == 0, trainer.stderr
    return trainer, job_dir


def test_alone_learns_the_digits_and_reports_the_location_of_the_model_and_the_tuning_metric(
    trained: tuple[Trainer, Path],
) -> None:
    trainer, job_dir = trained
    assert trainer.held_out_accuracy >= 0.97
    assert trainer.events("saved") == [{"event": "saved", "model": str(job_dir / "model")}]
    assert len(trainer.parameters_sha256) == 64
    assert sorted(path.name for path in job_dir.iterdir()) == ["checkpoints", "logs", "model"]
    written = [line["step"] for line in trainer.events("checkpoint")]  # one that waits may be replaced
    assert written == sorted({450, *written} & {90, 180, 270, 360, 450})
    assert json.loads(trainer.stdout.splitlines()[0]) == {"event": "start", "stacks": "SIGUSR1"}
    assert trainer.events("begin") == [{"event": "begin", "step": 0, "steps": 450}]

    metrics = [json.loads(line) for line in (job_dir.parent / "output.metrics").read_text().splitlines()]
    assert [line["global_step"] for line in metrics] == ["90", "180", "270", "360", "450"]
    assert metrics[-1]["trial"] == "3"
    metric = float(metrics[-1]["training/hptuning/metric"])
    assert metric == pytest.approx(trainer.held_out_accuracy, abs=1e-5)


def test_alone_reports_every_ten_steps_and_at_the_end_of_each_epoch(trained: tuple[Trainer, Path]) -> None:
    progress = trained[0].events("progress")
    every_ten = set(range(10, 451, 10))
    assert [line["step"] for line in progress] == sorted(every_ten | {90, 180, 270, 360, 450})
    assert {line["steps"] for line in progress} == {450}
    assert [line["epoch"] for line in progress] == [-(-line["step"] // 90) for line in progress]
    fields = {"event", "step", "steps", "epoch", "epochs", "loss", "accuracy", "examples_per_second"}
    assert all(set(line) == fields and line["examples_per_second"] > 0 for line in progress)
    assert [line["epoch"] for line in trained[0].events("evaluation")] == [1, 2, 3, 4, 5]


def test_predict_in_a_new_process_recognizes_the_digits(trained: tuple[Trainer, Path], launcher: Launcher) -> None:
    flags = ("--model", str(trained[1] / "model"), "--digits", "10")
    predict = launcher.alone(*flags, command=("-m", "trainyard_trainer.predict"))
    assert predict.wait() == 0, predict.stderr
    *digits, last = predict.stdout.splitlines()
    right = sum(line.endswith(": right") for line in digits)
    assert len(digits) == 10
    assert last == f"{right} of 10 right"
    assert right >= 9


def test_gang_learns_the_digits_of_files_in_a_bucket_and_agrees_and_an_evaluator_evaluates_each_checkpoint(
    launcher: Launcher, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    (images, labels), (inputs, answers) = (
        split.rows(np.arange(len(split))) for split in (digits().train, digits().held_out)
    )
    data = open_folder(f"{bucket.url}/digits")
    for number in range(4):  # each process reads its own
        part = io.BytesIO()
        np.savez(part, inputs=images[number::4], labels=labels[number::4])
        data.write(f"train-{number}.npz", part.getvalue())
        held_out = io.BytesIO()
        np.savez(held_out, inputs=inputs[number::4], labels=answers[number::4])
        data.write(f"held_out-{number}.npz", held_out.getvalue())
    job_dir = f"{bucket.url}/gang"
    gang = launcher.gang(
        "--job-dir", job_dir, "--epochs", "3", "--batch-size", "8", "--sharding", "file",
        "--data", f"{data.url}/train-*", "--held-out-data", f"{data.url}/held_out-*", workers=3, evaluators=1,
    )  # fmt: skip
    gang.succeed()

    chief, workers = gang["chief-0"], [gang[f"worker-{index}"] for index in range(3)]
    assert chief.held_out_accuracy >= 0.95
    assert {trainer.parameters_sha256 for trainer in (chief, *workers)} == {chief.parameters_sha256}
    assert chief.events("saved") == [{"event": "saved", "model": f"{job_dir}/model"}]
    steps = [line["step"] for line in chief.events("progress")]
    for worker in workers:
        assert [line["step"] for line in worker.events("progress")] == steps
        assert not any(worker.events(kind) for kind in ("saved", "evaluation", "checkpoint"))

    folder = open_folder(job_dir)
    assert folder.children() == ["checkpoints", "logs", "model"]
    assert folder.folder("checkpoints").children("step-")
    assert len(folder.folder("model").children()) == 3
    assert folder.folder("logs").children() == ["evaluator", "held_out", "train"]

    expected = {line["step"]: line for line in chief.events("evaluation")}
    evaluated = gang["evaluator-0"].events("evaluation")
    assert len(expected) == 3
    assert [line["step"] for line in evaluated] == [line["step"] for line in chief.events("checkpoint")]
    for line in evaluated:
        assert line["held_out_accuracy"] == expected[line["step"]]["held_out_accuracy"]
        assert line["held_out_loss"] == pytest.approx(expected[line["step"]]["held_out_loss"], rel=1e-3)


@pytest.mark.parametrize(
    ("epochs", "command", "job_dir", "evaluated"),
    [
        ("5", gets("SIGTERM", 1, "steps"), None, [450]),  # in an evaluation of an earlier one
        ("9", GETS_SIGTERM_AND_WAITS, None, []),  # as it would for a compilation
        ("9", ("-c", GETS_SIGTERM_AND_WAITS_FOR_DATA), "gs://bucket/away", []),
    ],
    ids=("after the end", "before", "without the bucket"),
)
def test_evaluator_gets_sigterm_and_evaluates_the_last_checkpoint_of_a_training_that_has_ended_alone(
    trained: tuple[Trainer, Path], launcher: Launcher, tmp_path: Path,
    epochs: str, command: tuple[str, str], job_dir: str | None, evaluated: list[int],
) -> None:  # fmt: skip
    shutil.copytree(trained[1] / "checkpoints", tmp_path / "checkpoints")
    environment = {"STORAGE_EMULATOR_HOST": f"http://{free_addresses(1)[0]}"} if job_dir else {}
    tf_config = json.dumps({"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}})
    evaluator = launcher.alone(
        "--job-dir", job_dir or str(tmp_path), "--epochs", epochs, command=command, TF_CONFIG=tf_config, **environment
    )  # fmt: skip
    assert evaluator.wait() == 0, evaluator.stderr
    assert [line["step"] for line in evaluator.events("evaluation")] == evaluated, evaluator.stderr
    assert evaluator.events("stopped")


def test_same_command_after_the_end_trains_no_more_and_that_of_another_model_is_refused(
    trained: tuple[Trainer, Path], launcher: Launcher
) -> None:
    trainer, job_dir = trained
    again = launcher.alone("--job-dir", str(job_dir))
    assert again.wait() == 0, again.stderr
    assert again.events("progress") == again.events("checkpoint") == []
    assert again.held_out_accuracy == trainer.held_out_accuracy
    assert again.parameters_sha256 == trainer.parameters_sha256

    before = sorted(job_dir.rglob("*"))
    flags = ("--model", "transformer", "--data", "synthetic", "--input-shape", "8")
    other = launcher.alone("--job-dir", str(job_dir), *flags)
    assert other.wait() == 2
    for message in ("model 'cnn (", "this command's is 'transformer (", "Choose another --job-dir"):
        assert message in other.stderr
    assert "Traceback" not in other.stderr
    assert sorted(job_dir.rglob("*")) == before


def test_sigterm_saves_and_the_same_command_resumes_bitwise_equal_while_sigusr1_dumps_stacks(
    trained: tuple[Trainer, Path], launcher: Launcher, tmp_path: Path
) -> None:
    evaluating = launcher.alone("--job-dir", str(tmp_path), command=gets("SIGTERM", 2, "steps"))
    assert evaluating.wait() == 0, evaluating.stderr
    assert evaluating.events("evaluation") == []
    assert [line["step"] for line in evaluating.events("stopped")] == [90]

    stopped = launcher.alone("--job-dir", str(tmp_path), command=gets("SIGTERM", 100))
    assert stopped.wait() == 0, stopped.stderr
    (at,) = stopped.events("stopped")
    assert stopped.events("evaluation") == trained[0].events("evaluation")[:2]
    assert 180 < at["step"] < 270
    assert at["steps"] == 450
    assert stopped.events("done") == stopped.events("saved") == []

    resumed = launcher.alone("--job-dir", str(tmp_path), command=gets("SIGUSR1", 100))
    assert resumed.wait() == 0, resumed.stderr
    assert "Current thread" in resumed.stderr
    assert "in interrupted" in resumed.stderr
    assert resumed.events("progress")[0]["step"] - at["step"] in range(1, 11)
    assert resumed.parameters_sha256 == trained[0].parameters_sha256


def test_early_stopping_exports_the_best_state_also_after_a_kill(launcher: Launcher, tmp_path: Path) -> None:
    early = ("--epochs", "90", "--batch-size", "64", "--learning-rate", "0.004", "--early-stopping", "2")
    flags = (*early, "--best", "loss:min")
    whole = launcher.alone("--job-dir", str(tmp_path / "whole"), *flags)
    killed = launcher.alone("--job-dir", str(tmp_path / "killed"), *flags, command=gets("SIGKILL", 60))
    assert [whole.wait(), killed.wait()] == [0, -signal.SIGKILL], (whole.stderr, killed.stderr)
    resumed = launcher.alone("--job-dir", str(tmp_path / "killed"), *flags)
    assert resumed.wait() == 0, resumed.stderr

    *evaluations, again = whole.events("evaluation")
    best = min(evaluations, key=lambda line: float(line["held_out_loss"]))
    assert (again["step"], again["held_out_loss"]) == (best["step"], best["held_out_loss"])
    assert evaluations.index(best) == len(evaluations) - 3
    assert json.loads((tmp_path / "whole/model/model.json").read_text())["steps"] == best["step"]
    assert whole.events("done") == resumed.events("done")


def test_killed_at_any_step_the_same_command_resumes_bitwise_equal(
    trained: tuple[Trainer, Path], launcher: Launcher, tmp_path: Path
) -> None:
    flags = ("--job-dir", str(tmp_path), "--checkpoint-every", "7", "--keep", "1")
    for step in (8, 134):  # of each start: right after a checkpoint, in another epoch
        killed = launcher.alone(*flags, command=gets("SIGKILL", step))
        assert killed.wait() == -signal.SIGKILL, killed.stderr
    resumed = launcher.alone(*flags)
    assert resumed.wait() == 0, resumed.stderr
    assert resumed.events("begin")[0]["step"] > 0
    assert resumed.parameters_sha256 == trained[0].parameters_sha256
    assert (tmp_path / "model" / "model.json").exists()


def test_exception_in_a_worker_or_kill_of_the_chief_ends_both_and_the_same_command_resumes_bitwise_equal(
    launcher: Launcher, tmp_path: Path
) -> None:
    flags = ("--epochs", "3", "--checkpoint-every", "20")
    undisturbed = launcher.gang(*flags, "--job-dir", str(tmp_path / "undisturbed"))
    undisturbed.succeed()
    job_dir = tmp_path / "disturbed"
    fails = with_event("raise OSError('the disk is gone')", 50)
    gang = launcher.gang(*flags, "--job-dir", str(job_dir), commands={"worker-0": fails})
    assert gang["worker-0"].wait() == 1
    assert gang["chief-0"].wait() != 0
    assert "OSError: the disk is gone" in gang["worker-0"].stderr
    assert "Traceback" not in gang["chief-0"].stderr
    assert sorted(path.name for path in job_dir.iterdir()) == ["checkpoints", "logs"]
    gang = launcher.gang(*flags, "--job-dir", str(job_dir), commands={"chief-0": gets("SIGKILL", 50)})
    assert gang["chief-0"].wait() == -signal.SIGKILL
    assert gang["worker-0"].wait() != 0
    gang = launcher.gang(*flags, "--job-dir", str(job_dir))
    gang.succeed()
    assert gang["chief-0"].events("begin")[0]["step"] > 0
    assert gang["chief-0"].parameters_sha256 == undisturbed["chief-0"].parameters_sha256
    assert sorted(path.name for path in job_dir.iterdir()) == ["checkpoints", "logs", "model"]


def test_sigterm_to_a_worker_stops_all_at_one_step_and_another_number_of_replicas_resumes(
    launcher: Launcher, tmp_path: Path
) -> None:
    flags = ("--job-dir", str(tmp_path), "--epochs", "3", "--log-every", "1")
    alone = launcher.alone(*flags, command=GETS_SIGTERM_EARLY)
    assert alone.wait() == 0, alone.stderr
    (at,) = alone.events("stopped")
    assert at["steps"] == 270  # of 16 examples each

    two = launcher.gang(*flags, commands={"worker-0": GETS_SIGTERM_EARLY})
    two.succeed()
    first = two["chief-0"].events("progress")[0]
    assert first["step"] == at["step"] + 1
    left = -(-(1437 - 16 * at["step"]) // 32) + 2 * 45  # of 32 each
    assert first["steps"] == at["step"] + left
    (then,) = two["chief-0"].events("stopped")
    assert two["worker-0"].events("stopped") == [then]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "logs"]
    assert list((tmp_path / "checkpoints").glob(f"step-{then['step']:08d}-*"))

    one = launcher.alone(*flags)
    assert one.wait() == 0, one.stderr
    assert one.events("progress")[0]["step"] == then["step"] + 1
    assert one.held_out_accuracy >= 0.95


def test_sigterm_to_a_worker_in_an_evaluation_stops_all_and_the_same_command_begins_with_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    flags = ("--job-dir", str(tmp_path), "--epochs", "2")
    endless = "while True:\n    yield batch"
    commands = {
        "chief-0": with_event(endless, 1, "steps"),
        "worker-0": with_event(f"os.kill(os.getpid(), signal.SIGTERM)\n{endless}", 1, "steps"),
    }
    gang = launcher.gang(*flags, commands=commands)
    gang.succeed()
    for trainer in gang:
        assert trainer.events("stopped") == [{"event": "stopped", "step": 45, "steps": 90}], trainer.stderr
        assert trainer.events("evaluation") == trainer.events("done") == []
    assert gang["chief-0"].events("checkpoint") == [{"event": "checkpoint", "step": 45}]

    alone = launcher.alone(*flags)
    assert alone.wait() == 0, alone.stderr
    kinds = ("evaluation", "progress", "done")
    events = [json.loads(line) for line in alone.stdout.splitlines() if line.startswith("{")]
    assert [(event["event"], event["step"]) for event in events if event["event"] in kinds][:2] == [
        ("evaluation", 45), ("progress", 50)
    ]  # fmt: skip


def test_on_a_terminal_there_is_a_bar_in_place_of_progress_lines(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    output = pexpect.run(
        f"{sys.executable} -m trainyard_trainer.task --epochs 2 --job-dir {tmp_path} --heartbeat 0.1",
        cwd=str(Path(__file__).resolve().parents[1]), env=environment, timeout=300, encoding="utf-8",
        dimensions=(24, 120),
    )  # fmt: skip
    for text in ("180/180", "examples/s, loss", "epoch 2/2", '"event": "evaluation"'):
        assert text in output
    assert '"event": "progress"' not in output
    assert '"event": "heartbeat"' not in output


def test_invalid_arguments_are_one_line_without_a_traceback(launcher: Launcher, tmp_path: Path) -> None:
    refused = {
        ("--data", "nowhere/*.npz"): (2, "nowhere"),
        ("--data", __file__): (2, "is of no known kind"),
        ("--sharding", "file"): (2, "digits is in memory. Choose auto, data or off."),
        ("--learning-rate", "1e30"): (1, "The loss is"),
    }
    for number, (flags, (code, message)) in enumerate(refused.items()):
        trainer = launcher.alone("--job-dir", str(tmp_path / str(number)), *flags)
        assert trainer.wait() == code, trainer.stderr
        assert message in trainer.stderr
        assert "Traceback" not in trainer.stderr


def test_what_does_not_come_in_time_is_named_in_one_line_and_the_exit_code_is_1(launcher: Launcher) -> None:
    address, missing = free_addresses(2)
    cluster = {"chief": [address], "worker": [missing]}
    tf_config = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    program = """
from trainyard_trainer import storage, task
from trainyard_trainer.processes import distribute
distribute.START_TIMEOUT = storage.RETRY_FOR = 2
task.main()
"""
    waits = {
        f"After 2 s the chief at {address} still waits for: worker 0 (": {"TF_CONFIG": tf_config},
        "gs://bucket/away/checkpoints/": {"STORAGE_EMULATOR_HOST": f"http://{missing}"},
    }
    for message, environment in waits.items():
        trainer = launcher.alone("--job-dir", "gs://bucket/away", command=("-c", program), **environment)
        assert trainer.wait() == 1, trainer.stderr
        assert message in trainer.stderr.splitlines()[-1]
        assert "Traceback" not in trainer.stderr


def test_exit_code_is_2_for_a_second_trainer_or_a_bad_tf_config_and_130_when_interrupted(
    launcher: Launcher, tmp_path: Path
) -> None:
    by_time_alone = ("--epochs", "90000", "--checkpoint-every", "9000000", "--save-seconds", "0.1")
    first = launcher.alone(*by_time_alone, command=INTERRUPTIBLE, TRAINYARD_JOB_DIR=str(tmp_path))
    first.wait_for("checkpoint")
    second = launcher.alone(*by_time_alone, TRAINYARD_JOB_DIR=str(tmp_path))
    mistaken = launcher.alone(TF_CONFIG="{")
    assert second.wait() == 2, second.stderr
    assert mistaken.wait() == 2, mistaken.stderr
    assert first.code is None, first.describe()
    first.send(signal.SIGINT)
    assert first.wait() == 130, first.stderr
    for trainer, line in ((first, "Interrupted."), (second, str(tmp_path)), (mistaken, "TF_CONFIG")):
        assert line in trainer.stderr.splitlines()[-1]
        assert "Traceback" not in trainer.stderr


def test_timeouts_of_the_readme_are_those_of_the_code() -> None:
    from trainyard_trainer import storage
    from trainyard_trainer.processes import distribute

    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text()
    rows = re.findall(r"^\| .* \| ([\d; ]+) \| (`[\w.]+`(?:, `\w+`)?) \|$", readme, re.MULTILINE)
    assert len(rows) == 3
    for seconds, cell in rows:
        module, _, names = cell.replace("`", "").partition(".")
        assert module == "distribute", cell
        values = [getattr(distribute, name) for name in names.split(", ")]
        assert values == [float(number) for number in seconds.split("; ")], cell
    # Else workers, which have nothing to write, would abort a job whose chief waits for its bucket at the end.
    assert distribute.SHUTDOWN_TIMEOUT > storage.RETRY_FOR
