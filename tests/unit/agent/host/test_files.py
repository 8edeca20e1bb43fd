"""Small files that are whole, whatever happens while they are written, and trees: their size and their removal."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from trainyard_agent.host import disk, files
from trainyard_agent.host.files import read_json, remove_tree, write_json


def test_write_json_has_its_words_on_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"is": "old"})
    synced: list[tuple[int, object]] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append((os.fstat(fd).st_size, read_json(path)))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    write_json(path, {"is": "new"})

    assert synced == [(13, {"is": "old"})]
    assert read_json(path) == {"is": "new"}


def test_write_json_on_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"is": "old"})

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"is": "new"})

    assert read_json(path) == {"is": "old"}
    assert list(tmp_path.iterdir()) == [path]


def test_remove_tree_removes_directories_deeper_than_python_follows(tmp_path: Path) -> None:
    tree = tmp_path / "run"
    tree.mkdir()
    at = os.open(tree, os.O_RDONLY)
    for _ in range(1200):  # the whole path is longer than the kernel takes
        os.mkdir("deep", dir_fd=at)
        below = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)

    remove_tree(tree)

    assert list(tmp_path.iterdir()) == []
    remove_tree(tree)


def test_remove_tree_of_root_changes_no_modes_in_a_tree_that_others_change_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chmod -R` follows a link that is put in the place of a file between its two looks at it."""
    programs: list[str] = []

    def fail(command: list[str]) -> str:
        programs.append(command[0])
        return "Directory not empty"

    def refuse(_: Path) -> None:
        raise RecursionError

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    monkeypatch.setattr(files, "run", fail)
    with pytest.raises(OSError, match="Directory not empty"):
        remove_tree(tmp_path)
    assert programs == ["rm"]


def test_disk_usage_is_of_what_is_stored_below_and_not_behind_links(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(bytes(1 << 20))
    (tmp_path / "sparse").touch()
    with (tmp_path / "sparse").open("r+b") as file:
        file.truncate(1 << 30)
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    assert 1 << 20 <= disk.usage(tmp_path) < 2 << 20
    assert disk.usage(tmp_path / "missing") == 0
