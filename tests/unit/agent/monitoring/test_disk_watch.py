"""Disks that take nothing: what is said of them, and whose fault a failure is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.mounts import SmallDisk, small_disk
from trainyard_agent.monitoring.disk_watch import DiskWatch
from trainyard_agent.runtimes.exits import blamed_on_disk
from trainyard_protocol.states import Reason


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


def test_disk_says_what_is_wrong_until_it_can_be_written(disk: SmallDisk) -> None:
    watch = DiskWatch([disk.path / "not" / "there"])
    place = disk.path / "not" / "there"
    assert watch.look() == ""
    disk.fill()
    assert watch.look() == f"{place} is full (No space left on device), 0 B are free"
    disk.free()
    assert watch.look() == ""
    disk.forbid_writes()
    assert watch.look() == f"{place} cannot be written (Read-only file system), 16.8 MB are free"
    disk.allow_writes()
    assert watch.look() == ""
    disk.forbid_files()
    assert watch.look() == f"{place} is full (No space left on device), 16.8 MB are free"
    disk.allow_files()
    assert watch.look() == ""
    assert list(disk.path.iterdir()) == []


def test_directory_that_a_run_failed_of_is_watched_until_it_has_room(disk: SmallDisk, tmp_path: Path) -> None:
    watch = DiskWatch([tmp_path])
    disk.fill()
    assert watch.look(disk.path / "job") == f"{disk.path / 'job'} is full (No space left on device), 0 B are free"
    assert watch.look() != ""
    disk.free()
    assert watch.look() == ""
    assert [one.path for one in watch.disks] == [str(tmp_path)]


def test_full_disk_is_the_machines_fault_whoever_tells_of_it() -> None:
    full = "/data has less than 250 MB left"
    pip = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    read_only = "error: could not create 'build': Read-only file system"
    cases = (
        (Reason.PACKAGES_FAILED, pip, full, Reason.HOST_FAILED, f"{full}. {pip}"),
        (Reason.PACKAGES_FAILED, pip, "", Reason.HOST_FAILED, pip),
        (Reason.IMAGE_FAILED, "write: disk quota exceeded", "", Reason.HOST_FAILED, None),
        (Reason.START_FAILED, read_only, full, Reason.HOST_FAILED, None),
        # A package may write where it should not, on a machine whose disks are fine.
        (Reason.PACKAGES_FAILED, read_only, "", Reason.PACKAGES_FAILED, read_only),
        (Reason.PACKAGES_FAILED, "No matching distribution", full, Reason.PACKAGES_FAILED, None),
        (Reason.SECRETS_FAILED, "No space left on device", full, Reason.SECRETS_FAILED, None),
    )
    wrong = [
        (case, got)
        for case in cases
        if (got := blamed_on_disk(*case[:3]))[0] is not case[3] or case[4] not in (None, got[1])
    ]
    assert wrong == []
