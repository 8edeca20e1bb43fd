"""Benchmark cases: models, input shapes and batch sizes that are small enough for two cores."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainer.data import datasets

DIGITS_TRAIN, SYNTHETIC_TRAIN = 1437, 896  # number of training examples
EPOCHS = 1_000_000  # never reached: measurements end the process


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, an input shape and a batch size.

    Attributes:
        input_shape: of synthetic examples; None for the digits.
        batch_size: per replica.
        steps: number of measured steps of a run.
    """

    model: str
    input_shape: tuple[int, ...] | None
    classes: int
    batch_size: int
    steps: int

    @staticmethod
    def of(settings: Mapping[str, Any]) -> "Case":
        """The inverse of `settings`, after JSON."""
        shape = settings["input_shape"]
        return Case(**{**settings, "input_shape": tuple(shape) if shape else None})

    def settings(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.model} on {self.examples}, batch {self.batch_size}"

    @property
    def examples(self) -> str:
        return "x".join(map(str, self.input_shape)) if self.input_shape else "digits"

    @property
    def train_examples(self) -> int:
        return SYNTHETIC_TRAIN if self.input_shape else DIGITS_TRAIN

    def dataset(self) -> datasets.Dataset:
        return datasets.synthetic(self.input_shape, self.classes) if self.input_shape else datasets.digits()

    def trainer(self, job_dir: str, log_every: int, checkpoint_every: int | None = None) -> list[str]:
        """Arguments of python that run the template."""
        shape = ",".join(map(str, self.input_shape or ()))
        synthetic = ("--data", "synthetic", "--classes", str(self.classes), "--input-shape", shape)
        return [
            "-m", "trainer.task", "--model", self.model, *(synthetic if shape else ()),
            "--batch-size", str(self.batch_size), "--epochs", str(EPOCHS), "--evaluate-every", "0",
            "--checkpoint-every", str(checkpoint_every or EPOCHS), "--log-every", str(log_every), "--job-dir", job_dir,
        ]  # fmt: skip

    def handwritten(self) -> list[str]:
        """Arguments of python that run the baseline."""
        shape = ("--input-shape", *map(str, self.input_shape)) if self.input_shape else ()
        return [
            "-m", "benchmarks.training.handwritten", "--model", self.model, *shape, "--classes", str(self.classes),
            "--batch-size", str(self.batch_size), "--steps", str(self.steps),
        ]  # fmt: skip


QUICK = (
    Case("cnn", None, 10, 64, 200),
    Case("resnet50", (32, 32, 3), 10, 8, 4),
    Case("transformer", (32,), 64, 16, 20),
)
FULL = (
    Case("cnn", None, 10, 16, 2000),
    Case("cnn", None, 10, 64, 1000),
    Case("cnn", None, 10, 256, 300),
    Case("resnet50", (32, 32, 3), 10, 8, 20),
    Case("resnet50", (64, 64, 3), 10, 16, 10),
    Case("transformer", (64,), 256, 8, 60),
    Case("transformer", (64,), 256, 32, 20),
    Case("transformer", (64,), 256, 64, 12),
)
