"""Both implementations of Folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.addresses import free_addresses
from support.faulty_uploads import FaultyUploads
from trainyard_trainer.errors import TrainerUsageError
from trainyard_trainer.storage import StorageError, open_folder

if TYPE_CHECKING:
    from conftest import Bucket


def test_write_makes_folders_and_replaces_an_existing_file(job_dir: str) -> None:
    folder = open_folder(job_dir).folder("a")
    assert folder.url == f"{job_dir}/a"
    assert folder.read("b/c") is None
    for content in (b"\x00\xff", b""):
        folder.write("b/c", content)
        assert open_folder(folder.url).folder("b").read("c") == content
    assert open_folder(f"{job_dir}/a/b").children() == ["c"]


def test_children_are_the_direct_ones_that_start_with_the_prefix(job_dir: str) -> None:
    folder = open_folder(job_dir)
    assert folder.children() == []
    for name in ("temp_2/a/b", "temp_1/a", "temp_1/b", "model/a", "temp"):
        folder.write(name, b"x")
    assert folder.children() == ["model", "temp", "temp_1", "temp_2"]
    assert folder.children("temp_") == ["temp_1", "temp_2"]
    assert folder.folder("temp_1").children() == ["a", "b"]


def test_remove_what_another_process_is_removing_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, unlink = open_folder(str(tmp_path)), os.unlink
    for name in ("temp_1/a/b", "temp_1/a/c", "temp_1/d", "temp_1/e"):
        folder.write(name, b"x")
    faster: list[str] = []

    def removed_by_another(name: str, *, dir_fd: int | None = None) -> None:
        if len(faster) < 3:
            faster.append(name)
            unlink(name, dir_fd=dir_fd)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", removed_by_another)
    folder.remove("temp_1")
    assert len(faster) == 3
    assert folder.children() == []


def test_remove_deletes_a_folder_and_not_its_siblings(job_dir: str) -> None:
    folder = open_folder(job_dir)
    for name in ("temp_1/a/b", "temp_1/c", "temp_10/a", "file"):
        folder.write(name, b"x")
    folder.remove("temp_1")
    folder.remove("file")
    folder.remove("never was")
    assert folder.children() == ["temp_10"]


def test_open_a_bucket_without_a_name_is_an_error() -> None:
    with pytest.raises(TrainerUsageError, match="gs://BUCKET"):
        open_folder("gs:///a")


def test_write_that_fails_half_way_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(str(tmp_path))
    folder.write("a", b"whole")

    def disk_full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(StorageError, match=r"/a: No space left on device\. When .* the same command continues"):
        folder.write("a", b"torn")
    assert folder.read("a") == b"whole"
    assert folder.children() == ["a"]  # what was written of the other is no longer on the disk


def test_bucket_that_is_away_is_retried_and_then_one_clear_error(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = FaultyUploads(monkeypatch)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
    folder = open_folder(f"{bucket.url}/away")
    uploads.fault = lambda _name: 503 if len(uploads.refused) < 2 else None
    folder.write("a", b"there")
    assert (len(uploads.refused), folder.read("a")) == (2, b"there")
    (closed,) = free_addresses(1)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{closed}")
    monkeypatch.setattr("trainyard_trainer.storage.RETRY_FOR", 1.0)
    with pytest.raises(StorageError, match=r"away/a: no response for 1 s \(.*the same command continues"):
        open_folder(f"{bucket.url}/away").read("a")
