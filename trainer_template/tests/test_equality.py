"""The same global batch on one, two and four replicas gives the same parameters, up to the order of additions.

A gradient's sum is made of other partial sums on another number of replicas, so float32 rounds it elsewhere. The
differences begin in the last digit and grow with each step. With momentum (Adam divides by the gradient's size, which
amplifies small differences) about 100 steps ended within 2e-4 of the parameters' mean size, and mostly within
2e-6; other examples in the steps make a difference that is a thousand times as large.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from conftest import Launcher

TOLERANCE = 1e-3
GLOBAL_BATCH = 32


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in four files."""
    from sklearn.datasets import load_digits

    digits, directory = load_digits(), tmp_path_factory.mktemp("digits")
    for file in range(4):
        part = slice(file, None, 4)
        images = (digits.images[part] * 15).astype(np.uint8)
        np.savez(directory / f"{file}.npz", images=images, labels=digits.target[part])
    return directory


@pytest.fixture(scope="module")
def train(launcher: Launcher, files: Path, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    job_dirs = tmp_path_factory.mktemp("jobs")

    @functools.cache
    def train(replicas: int, sharding: str) -> NDArray[np.float32]:
        """The parameters [P]."""
        job_dir = job_dirs / f"{sharding}-{replicas}"
        flags = {
            "--data": f"{files}/*.npz", "--sharding": sharding, "--batch-size": str(GLOBAL_BATCH // replicas),
            "--optimizer": "momentum", "--learning-rate": "0.005", "--epochs": "2", "--job-dir": str(job_dir),
        }  # fmt: skip
        gang = launcher.gang(*(word for flag in flags.items() for word in flag), workers=replicas - 1)
        gang.succeed()
        assert len({trainer.parameters_sha256 for trainer in gang}) == 1
        (parameters,) = (job_dir / "model").glob("*.safetensors")
        loaded = safetensors.numpy.load_file(parameters)
        return np.concatenate([loaded[name].ravel() for name in sorted(loaded)])

    return train


@pytest.mark.parametrize("sharding", ["auto", "data"])
def test_one_two_and_four_replicas_reach_the_same_parameters(train, sharding: str) -> None:  # type: ignore[no-untyped-def]
    ends = [train(replicas, sharding) for replicas in (1, 2, 4)]
    scale = float(np.abs(ends[0]).mean())
    for end in ends[1:]:
        assert float(np.abs(end - ends[0]).max()) <= TOLERANCE * scale, np.abs(end - ends[0]).max() / scale
    if sharding == "data":  # what is compared above could differ
        assert float(np.abs(train(1, "auto") - ends[0]).max()) > 100 * TOLERANCE * scale
