"""Models of one's own, a file each: the same training on one and two replicas and after kills; an exported model."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from support.events import with_event
from support.lazy import experiment, export, predict
from trainyard_trainer.arguments import parse_arguments

if TYPE_CHECKING:
    from conftest import Launcher, Trainer

OWN = ("regression", "two_networks", "with_nnx", "with_equinox", "photos")
IN_PROCESSES = ("two_networks", "with_equinox", "photos")  # two replicas are two processes, else two devices
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
KILLED = with_event(
    """
saver = Saver(sys.argv[sys.argv.index("--job-dir") + 1], 0, 1)
while 20 not in [entry.step for entry in saver.checkpoints()]:  # it is written by a thread
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
""",
    25,
)


def write_photos(folder: Path) -> None:
    """Pictures of two classes, of mixed sizes, by class."""
    random = np.random.default_rng(0)
    for label, axis in (("stripes", 0), ("waves", 1)):
        (folder / label).mkdir(parents=True)
        for number in range(80):
            shape = tuple(random.integers(12, 30, 2).tolist())
            pixels = 127 + 120 * np.sin(np.indices(shape)[axis] * random.uniform(0.9, 1.1))
            Image.fromarray(pixels.astype(np.uint8)).convert("RGB").save(folder / label / f"{number}.png")


def parameters(job_dir: Path) -> np.ndarray:
    (file,) = (job_dir / "model").glob("*.safetensors")
    loaded = safetensors.numpy.load_file(file)
    return np.concatenate([loaded[name].ravel() for name in sorted(loaded)])


def first_loss(trainer: Trainer) -> float:
    return float(trainer.events("progress")[0]["loss"])


@pytest.mark.parametrize("name", OWN)
def test_model_in_one_file_trains_equally_on_one_replica_on_two_then_one_and_after_a_kill(
    name: str, launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags: tuple[str, ...] = (
        "--task", f"own.{name}", "--steps", "40", "--checkpoint-every", "20", "--log-every", "5",
    )  # fmt: skip
    path = Path(__file__).parent
    python_path = f"{path.parent}:{path}"
    if name == "photos":
        write_photos(tmp_path / "photos")
        flags = (*flags, "--data", str(tmp_path / "photos"), "--augment", "crop,flip")

    def train(
        job_dir: str, *more: str, command: tuple[str, ...] = ("-m", "trainyard_trainer.task"), **env: str
    ) -> Trainer:
        job = ("--job-dir", str(tmp_path / job_dir))
        return launcher.alone(*flags, *job, *more, command=command, PYTHONPATH=python_path, **env)

    def train_on_two() -> Trainer:
        """The one that is killed."""
        if name not in IN_PROCESSES:
            return train("two", "--batch-size", "8", command=KILLED, XLA_FLAGS=TWO_DEVICES)
        gang = launcher.gang(
            *flags, "--job-dir", str(tmp_path / "two"), "--batch-size", "8", commands={"chief-0": KILLED},
            PYTHONPATH=python_path,
        )  # fmt: skip
        return gang["chief-0"]

    one_replica = ("--accumulate", "2", "--batch-size", "8")
    jobs = [
        train("alone", *one_replica), train_on_two(), train("killed", *one_replica, command=KILLED)
    ]  # fmt: skip
    for job, code in zip(jobs, (0, -signal.SIGKILL, -signal.SIGKILL), strict=True):
        assert job.wait() == code, job.describe_job()
    alone, two, _ = jobs
    elastic, resumed = train("two", *one_replica), train("killed", *one_replica)
    assert [elastic.wait(), resumed.wait()] == [0, 0], (elastic.stderr, resumed.stderr)

    assert "Replicas in sync: 2" in two.stderr
    assert elastic.events("begin") == resumed.events("begin") == [{"event": "begin", "step": 20, "steps": 40}]
    assert alone.events("done")[0]["step"] == elastic.events("done")[0]["step"] == 40
    one, other = parameters(tmp_path / "alone"), parameters(tmp_path / "two")
    # Adam amplifies rounding: other examples or other random numbers differ by a hundred times as much.
    assert np.abs(one - other).max() <= 2e-2 * np.abs(one).mean(), np.abs(one - other).max()
    assert resumed.parameters_sha256 == alone.parameters_sha256
    evaluation = alone.events("evaluation")[-1]
    assert evaluation["held_out_loss"] < 0.7 * first_loss(alone)

    about = json.loads((tmp_path / "alone/model/model.json").read_text())
    model = export.load(str(tmp_path / "alone/model"))
    zeros = np.zeros((3, *model.input_shape), model.input_dtype)
    outputs = model(zeros)
    assert {key: len(value) for key, value in outputs.items()} == dict.fromkeys(about["outputs"], 3)
    np.save(tmp_path / "zeros.npy", zeros)
    assert predict.main(["--model", str(tmp_path / "alone/model"), str(tmp_path / "zeros.npy")]) == 0
    predictions = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    keys = {"label", "class", "probability"} if "probabilities" in outputs else set(outputs)
    assert [set(prediction) for prediction in predictions] == [keys] * 3


def test_module_without_a_task_is_refused_in_one_line() -> None:
    from trainyard_trainer.errors import TaskError

    refused = {
        "nowhere.model": "there is no module nowhere here",
        "trainyard_trainer.errors": "the module has no variable `task` that is a TrainingTask",
    }
    for module, message in refused.items():
        with pytest.raises(TaskError, match=message):
            experiment.task_of(parse_arguments(["--task", module]))
