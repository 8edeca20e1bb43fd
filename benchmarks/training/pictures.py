"""The held-out accuracy of one and of four processes on JPEG files of mixed sizes, in a folder and in shards."""

import itertools
import statistics
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.training.cases import Case
from benchmarks.training.processes import FIRST_CORE, SECOND_CORE, running
from benchmarks.training.results import ResultTable, log_progress
from benchmarks.training.trainers import tf_configs
from trainer.data import datasets
from trainer.files import convert

COLUMNS = ("model", "data", "processes", "global batch", "epochs", "held-out accuracy", "seconds")
GLOBAL_BATCH = 16
SHARDS = 8
EPOCHS = 10


def measure(cases: list[Case], rounds: int, folder: Path) -> ResultTable:
    """The cases that have images; the trainings of the rounds differ in their seeds."""
    root = folder / "pictures"
    write_digits(root)
    convert(str(root / "train"), "tfrecord", SHARDS, str(root / "shards"))
    models = sorted({case.model for case in cases if case.model != "transformer"} & {"cnn"})
    rows = []
    for model, data, processes in itertools.product(models, ("train", "shards"), (1, 4)):
        accuracies, seconds = [], []
        for seed in range(rounds):
            log_progress(f"{model} on {data}, {processes} processes, round {seed + 1} of {rounds}")
            accuracy, duration = _train(model, root, data, processes, seed, folder)
            accuracies.append(accuracy)
            seconds.append(duration)
        where = "folder by class" if data == "train" else f"{SHARDS} TFRecord shards"
        spread = f"{statistics.median(accuracies):.3f} ({min(accuracies):.3f} to {max(accuracies):.3f})"
        values = (model, where, processes, GLOBAL_BATCH, EPOCHS, spread, statistics.median(seconds))
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return ResultTable(
        "Accuracy on pictures",
        COLUMNS,
        rows,
        "The digits as JPEG files of 24 to 47 pixels in each direction, resized to 16x16, with `--augment crop`; 1437 "
        "are trained on and 360 held out. The median, minimum and maximum of the seeds; seconds from the start of the "
        f"processes to the model, four processes on two cores. Rounds: {rounds}.",
    )


def write_digits(root: Path) -> None:
    """The digits as JPEG files of different sizes: ROOT/train/CLASS/NUMBER.jpg and ROOT/held_out/..."""
    from PIL import Image

    dataset = datasets.digits()
    random = np.random.default_rng(0)
    for part, split in (("train", dataset.train), ("held_out", dataset.held_out)):
        for number, (pixels, label) in enumerate(zip(*split.rows(np.arange(len(split))), strict=True)):
            path = root / part / str(label) / f"{number:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray((255 * pixels[..., 0]).astype(np.uint8))
            height, width = random.integers(24, 48, 2).tolist()
            image.resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)


def _train(model: str, root: Path, data: str, processes: int, seed: int, folder: Path) -> tuple[float, float]:
    """The held-out accuracy, and the seconds to the model."""
    arguments = [
        "-m", "trainer.task", "--model", model, "--data", str(root / data), "--held-out-data", str(root / "held_out"),
        "--input-shape", "16,16,1", "--augment", "crop", "--batch-size", str(GLOBAL_BATCH // processes),
        "--epochs", str(EPOCHS), "--evaluate-every", "0", "--seed", str(seed),
        "--job-dir", tempfile.mkdtemp(dir=folder),
    ]  # fmt: skip
    environment = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    cores = itertools.cycle((FIRST_CORE, SECOND_CORE))
    commands = [(arguments, next(cores), {**environment, **config}) for config in tf_configs(processes)]
    with running(*commands) as (chief, *_):
        saved = chief.wait_for_event("saved")
        accuracy = chief.lines("evaluation")[-1].event["held_out_accuracy"]
        return float(accuracy), saved.at - chief.started
