"""The lock of a job directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainyard_trainer.output import lease
from trainyard_trainer.output.lease import LEASE, JobDirLockedError, lock
from trainyard_trainer.storage import Folder, open_folder

if TYPE_CHECKING:
    from conftest import Bucket

TEMPLATE = Path(lease.__file__).resolve().parents[2]
HOLDS = (
    "import sys; from trainyard_trainer.output.lease import lock; from trainyard_trainer.storage import open_folder; "
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 3600.0)  # tests call `check`
    monkeypatch.setattr(lease, "LEASE_SECONDS", 3.0)


@pytest.fixture
def folder(job_dir: str) -> Folder:
    return open_folder(f"{job_dir}/checkpoints")


@pytest.fixture
def bucket_folder(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    return open_folder(f"{bucket.url}/{tmp_path.name}/checkpoints")


def change(folder: Folder, **entries: object) -> None:
    """Change entries of the lease, as if another process or machine had written it."""
    data = folder.read(LEASE)
    assert data is not None
    folder.write(LEASE, json.dumps(json.loads(data) | entries).encode())


def test_a_second_trainer_is_refused_until_the_first_releases_or_is_killed(folder: Folder, job_dir: str) -> None:
    program = HOLDS + f"held = lock(open_folder({folder.url!r})); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", program], cwd=TEMPLATE, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        if not job_dir.startswith("gs://"):  # of a bucket, see the heartbeat's test
            with pytest.raises(JobDirLockedError, match=f"writes to --job-dir {job_dir}: process {holder.pid} on "):
                lock(folder)
        holder.kill()
    for _ in range(2):
        held = lock(folder)  # at once: it knows that the process is dead, or that it was released
        held.check()
        held.release()


def test_a_lease_whose_heartbeat_moves_is_refused_and_one_that_stands_still_is_taken_over(
    bucket_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lock(bucket_folder)
    # It beats while the other looks.
    monkeypatch.setattr("trainyard_trainer.output.lease.time.sleep", lambda _seconds: first.check())
    with pytest.raises(JobDirLockedError, match="Another trainer writes to --job-dir gs://bucket/"):
        lock(bucket_folder)
    monkeypatch.undo()
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)
    change(bucket_folder, machine="another", pid=77, host="far-away")
    second = lock(bucket_folder)
    # The first one, whose process was only frozen, learns that it has lost.
    with pytest.raises(JobDirLockedError, match="process"):
        first.check()
    second.check()
    first.release()
    second.check()
    second.release()
    assert bucket_folder.read(LEASE) is None


def test_a_later_attempt_of_the_same_job_takes_over_at_once(
    bucket_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_ML_JOB_ID", "digits")
    monkeypatch.setattr(lease, "LEASE_SECONDS", 3600.0)
    first = lock(bucket_folder)
    change(bucket_folder, machine="another", pid=77)
    second = lock(bucket_folder)
    with pytest.raises(JobDirLockedError, match="of job digits"):
        first.check()
    second.release()
