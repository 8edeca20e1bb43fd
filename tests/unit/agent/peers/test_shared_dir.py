"""The mark in a job-dir: left by the agent with the primary, found by the others, wherever the directory begins."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainyard_agent.peers import shared_dir

USER = 300_123
"""Nobody's."""


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_mark_is_found_in_the_job_dir_or_in_the_first_directory_above_it(tmp_path: Path) -> None:
    for job_dir in (tmp_path, tmp_path / "not" / "yet"):
        mark = shared_dir.leave_mark(str(job_dir), "g")
        assert mark is not None
        (tmp_path / "not" / "yet").mkdir(parents=True, exist_ok=True)  # the program of the primary may make it
        shared_dir.find_mark(str(job_dir), "g")
        mark.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["not"]


def test_directory_of_one_machine_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_dir, "_WAIT_S", 0.0)
    shared_dir.leave_mark(str(tmp_path / "here"), "another gang")
    with pytest.raises(shared_dir.NotShared, match="is not shared: a file that the agent of the primary wrote"):
        shared_dir.find_mark(str(tmp_path), "g")
    with pytest.raises(shared_dir.NotShared, match="No directory of the job-dir /nowhere/out exists"):
        shared_dir.leave_mark("/nowhere/out", "g")


def test_storage_is_shared_by_nature() -> None:
    for job_dir in ("", "gs://bucket/out"):
        assert shared_dir.leave_mark(job_dir, "g") is None
        shared_dir.find_mark(job_dir, "g")


def links_to_nothing(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere / "made")


def links_to_a_file(place: Path, elsewhere: Path) -> None:
    (elsewhere / "there").touch()
    place.symlink_to(elsewhere / "there")


def is_a_directory(place: Path, _elsewhere: Path) -> None:
    place.mkdir()


@pytest.mark.parametrize("plant", [links_to_nothing, links_to_a_file, is_a_directory])
def test_what_a_job_puts_in_the_place_of_the_mark_is_not_followed(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    job_dir, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    job_dir.mkdir()
    elsewhere.mkdir()
    plant(job_dir / ".trainyard-g", elsewhere)
    before = {path: path.stat().st_mtime_ns for path in elsewhere.iterdir()}
    with pytest.raises(shared_dir.NotShared, match="cannot be written on the machine of the primary: File exists"):
        shared_dir.leave_mark(str(job_dir), "g")
    assert {path: path.stat().st_mtime_ns for path in elsewhere.iterdir()} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_mark_is_the_users_of_the_job_who_writes_nowhere_else(open_dir: Path) -> None:
    own, roots = open_dir / "own", open_dir / "roots"
    own.mkdir()
    os.chown(own, USER, USER)
    roots.mkdir(mode=0o755)
    mark = shared_dir.leave_mark(str(own / "not yet"), "g", user=USER)
    assert mark is not None
    assert (own / ".trainyard-g").stat().st_uid == USER
    mark.remove()
    (own / "link").symlink_to(roots)
    for job_dir in (roots, own / "link"):
        with pytest.raises(shared_dir.NotShared, match="Permission denied"):
            shared_dir.leave_mark(str(job_dir), "g", user=USER)
    assert [*roots.iterdir()] == []


def test_mark_for_containers_is_in_what_they_have_mounted(tmp_path: Path) -> None:
    """No job can replace that by a link, as it can what is below."""
    mounted, elsewhere = tmp_path / "mounted", tmp_path / "elsewhere"
    mounted.mkdir()
    elsewhere.mkdir()
    (mounted / "job").symlink_to(elsewhere)
    assert shared_dir.leave_mark(str(mounted / "job"), "g", str(mounted)) is not None
    assert ([*elsewhere.iterdir()], (mounted / ".trainyard-g").exists()) == ([], True)
    shared_dir.find_mark(str(mounted / "job"), "g")
