"""Training that saves to a bucket whose uploads fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.faulty_storage import FaultyStorage
from trainer.output.saving import Saver
from trainer.output.summaries import TensorBoard
from trainer.storage import open_folder

if TYPE_CHECKING:
    from conftest import Bucket, Launcher


@pytest.fixture
def storage(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStorage]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    between = FaultyStorage(bucket.endpoint)
    yield between
    between.close()


def test_event_files_and_traces_are_uploaded_by_a_thread_and_what_failed_by_the_next_flush(
    storage: FaultyStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from trainer.output.profile import StepProfiler

    uploading, release = threading.Event(), threading.Event()

    def refuse_the_first(name: str) -> int | None:
        assert name.startswith("curves/logs/train/")
        if release.is_set():
            return None
        uploading.set()
        assert release.wait(60)
        return 403

    storage.fault = refuse_the_first
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.endpoint)
    job_dir = "gs://bucket/curves"
    curves = TensorBoard(job_dir, 0)
    for step, name in enumerate(("first", "second", "third")):  # none waits for the bucket
        curves.scalars("train", step, **{name: 1.0})
        curves.flush()
        assert uploading.wait(60)
    profiler = StepProfiler(curves, (3, 3), enabled=True)
    profiler.before(3)
    profiler.after(3, ())
    release.set()
    curves.close()
    assert (
        "The event files could not be uploaded to gs://bucket/curves/logs/train; training continues"
        in caplog.text
    )
    folder = open_folder(job_dir).folder("logs/train")
    (file,) = folder.children("events")
    assert any(name.startswith("plugins/profile/steps-3-3/") for name in folder.walk())
    content = folder.read(file)
    assert content is not None
    assert all(name in content for name in (b"first", b"second", b"third"))


def test_upload_that_fails_leaves_the_last_good_checkpoint_and_the_same_command_resumes_and_retries(
    launcher: Launcher, bucket: Bucket, storage: FaultyStorage
) -> None:
    job_dir = f"{bucket.url}/cut"
    flags = ("--job-dir", job_dir, "--epochs", "3")
    steps = 23  # an epoch's, of 64 examples each
    first = f"cut/checkpoints/step-{steps:08d}"
    storage.fault = lambda name: 403 if "/checkpoints/step-" in name and not name.startswith(first) else None
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
