"""Scikit-learn's digits, many times over, so that an epoch lasts longer than a measurement: it has no evaluation and
no save.

`python -m benchmarks.training.repeated_digits ARGUMENTS` is `python -m trainer.task ARGUMENTS`, the trainer template,
on them.
"""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets

TIMES, HELD_OUT = 64, 360


def load() -> Any:
    """The result of `sklearn.datasets.load_digits`, with each digit many times."""
    digits = _load_digits()
    digits.images, digits.target = np.tile(digits.images, (TIMES, 1, 1)), np.tile(digits.target, TIMES)
    return digits


def write(folder: Path) -> tuple[Path, Path]:
    """Files of the library of trainers, to train on and held out: float32 images [N, 8, 8, 1] in [0, 1]."""
    images, labels = examples()
    files = folder / "train.npz", folder / "held_out.npz"
    for file, part in zip(files, (slice(HELD_OUT, None), slice(HELD_OUT)), strict=True):
        np.savez(file, inputs=images[part], labels=labels[part])
    return files


def examples() -> tuple[Any, Any]:
    """Images [N, 8, 8, 1] in [0, 1], labels [N]."""
    digits = load()
    return (digits.images[..., None] / 16).astype(np.float32), digits.target.astype(np.int32)


_load_digits = sklearn.datasets.load_digits

if __name__ == "__main__":
    sklearn.datasets.load_digits = load
    runpy.run_module("trainer.task", run_name="__main__", alter_sys=True)
