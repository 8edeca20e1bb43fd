"""Training that saves to a bucket whose uploads fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from faulty_storage import FaultyStorage
from trainer.output.saving import Saver
from trainer.storage import open_folder

if TYPE_CHECKING:
    from conftest import Bucket, Launcher


@pytest.fixture
def storage(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStorage]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    between = FaultyStorage(bucket.endpoint)
    yield between
    between.close()


def test_upload_that_fails_leaves_the_last_good_checkpoint_and_the_same_command_resumes_and_retries(
    launcher: Launcher, bucket: Bucket, storage: FaultyStorage
) -> None:
    job_dir = f"{bucket.url}/cut"
    flags = ("--job-dir", job_dir, "--epochs", "3")
    steps = 23  # an epoch's, of 64 examples each
    storage.fault = lambda name: 403 if name.startswith(f"cut/checkpoints/step-{2 * steps:08d}") else None
    gang = launcher.gang(*flags, workers=3, STORAGE_EMULATOR_HOST=storage.endpoint)
    codes = [gang[task].wait() for task in ("chief-0", "worker-0", "worker-1", "worker-2")]
    assert codes[0] == 1
    assert 0 not in codes
    assert len(storage.cut) == 1
    assert "injected fault" in gang["chief-0"].stderr
    (left,) = Saver(job_dir, 0, 3).checkpoints()
    assert left.step == steps
    assert Saver(job_dir, 0, 3).newest()

    # Transient errors are retried.
    storage.fault = lambda name: 503 if "/checkpoints/step-" in name and len(storage.cut) < 3 else None
    again = launcher.gang(*flags, workers=3, STORAGE_EMULATOR_HOST=storage.endpoint)
    again.succeed()
    assert len(storage.cut) == 3
    assert again["chief-0"].events("progress")[0]["step"] > left.step
    assert open_folder(job_dir).children() == ["checkpoints", "logs", "model"]
