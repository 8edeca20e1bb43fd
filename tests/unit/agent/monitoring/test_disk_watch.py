from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.mounts import SmallDisk, small_disk
from trainyard_agent.monitoring.disk_watch import DiskWatch


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


def test_disk_near_its_reserve_does_not_change_from_look_to_look(disk: SmallDisk) -> None:
    watch = DiskWatch([disk.path], reserve=10**9)
    assert watch.look() == "", "of a small disk a tenth is enough"
    ballast = disk.path / "ballast"
    ballast.write_bytes(b"x" * int(15.5 * 10**6))
    problem = watch.look()
    assert problem == f"{disk.path} has less than 1.7 MB left, 1.3 MB are free"
    ballast.write_bytes(b"x" * 15 * 10**6)
    assert watch.look() == problem
    disk.free()
    assert watch.look() == ""
    (before,) = watch.disks
    ballast.write_bytes(b"x" * 10**6)
    watch.look()
    assert watch.disks == (before,), "a report does not change with every file"


def test_directory_that_a_run_failed_of_is_watched_until_it_has_room(disk: SmallDisk, tmp_path: Path) -> None:
    watch = DiskWatch([tmp_path])
    disk.fill()
    assert watch.look(disk.path / "job") == f"{disk.path / 'job'} is full (No space left on device), 0 B are free"
    assert watch.look() != ""
    disk.free()
    assert watch.look() == ""
    assert [one.path for one in watch.disks] == [str(tmp_path)]
