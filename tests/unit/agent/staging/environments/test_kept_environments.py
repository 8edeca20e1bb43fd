"""Kept environments: what is complete, whatever ended the agent or failed."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from trainyard_agent.staging.environments import kept_environments
from trainyard_agent.staging.environments.kept_environments import KeptEnvironments

NAME = "a" * 64


def environment(root: Path, run: str) -> Path:
    """The directory of a run, with files of its own."""
    directory = root / "environments" / run
    (directory / "venv" / "bin").mkdir(parents=True)
    for name in ("one", "two"):
        (directory / "venv" / name).write_text(run)
    (directory / "venv" / "pyvenv.cfg").write_text(f"command = {directory}/venv\n")
    return directory


def restored(kept: KeptEnvironments, root: Path, run: str, name: str = NAME) -> dict[str, str] | None:
    directory = root / "environments" / run
    directory.mkdir(parents=True)
    if not kept.restore(name, directory):
        return None
    return {path.name: path.read_text() for path in (directory / "venv").iterdir() if path.is_file()}


@pytest.fixture
def kept(tmp_path: Path) -> KeptEnvironments:
    return KeptEnvironments(tmp_path / "kept")


def test_environment_whose_removal_was_cut_short_is_not_restored(
    kept: KeptEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keep(NAME, environment(tmp_path, "a"))

    def killed(path: Path) -> None:
        (path / "venv" / "one").unlink(missing_ok=True)
        raise OSError(errno.EINTR, "killed")

    monkeypatch.setattr(kept_environments, "remove_tree", killed)
    with pytest.raises(OSError, match="killed"):
        kept.keep(NAME, environment(tmp_path, "b"))
    monkeypatch.undo()

    assert restored(KeptEnvironments(tmp_path / "kept"), tmp_path, "c") is None


def test_file_that_cannot_be_linked_keeps_nothing_and_says_so_once(
    kept: KeptEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_source: object, _target: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)

    kept.keep(NAME, environment(tmp_path, "a"))

    assert restored(kept, tmp_path, "b") is None
    assert caplog.text.count("Invalid cross-device link") == 1


def test_damaged_note_of_one_removes_that_one_alone(kept: KeptEnvironments, tmp_path: Path) -> None:
    kept.keep(NAME, environment(tmp_path, "a"))
    (tmp_path / "kept" / NAME / "ready.json").write_text("")

    kept.keep("b" * 64, environment(tmp_path, "b"))

    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["b" * 64]
    shutil.rmtree(tmp_path / "environments")
    assert restored(kept, tmp_path, "c", "b" * 64) is not None


def test_dependencies_are_added_where_nothing_is_in_their_place(kept: KeptEnvironments, tmp_path: Path) -> None:
    first = environment(tmp_path, "a")
    (first / "venv" / "old").mkdir()
    (first / "venv" / "old" / "module").touch()
    before = kept_environments.files(first)
    (first / "venv" / "needed").mkdir()
    (first / "venv" / "needed" / "module").write_text("needed")
    (first / "venv" / "bin" / "tool").write_text(f"#!{first}/venv/bin/python")

    kept.keep_dependencies(NAME, first, before)

    second = environment(tmp_path, "b")
    assert kept.restore_dependencies(NAME, second)
    assert (second / "venv" / "needed" / "module").read_text() == "needed"
    assert (second / "venv" / "bin" / "tool").read_text() == f"#!{second}/venv/bin/python"
    assert (second / "venv" / "one").read_text() == "b"
    assert not (second / "venv" / "old").exists()
    for name, is_link in (("c", True), ("d", False)):
        other = environment(tmp_path, name)
        if is_link:
            (other / "venv" / "needed").symlink_to(tmp_path)
        else:
            (other / "venv" / "needed").mkdir()
            (other / "venv" / "needed" / "module").write_text("its own")
        files = kept_environments.files(other)
        assert not kept.restore_dependencies(NAME, other)
        assert kept_environments.files(other) == files
    assert not (tmp_path / "module").exists()


def test_dependencies_that_have_changed_a_package_are_not_kept(kept: KeptEnvironments, tmp_path: Path) -> None:
    first = environment(tmp_path, "a")
    before = kept_environments.files(first)
    (first / "venv" / "needed").touch()
    (first / "venv" / "one").write_text("changed")

    kept.keep_dependencies(NAME, first, before)

    assert not kept.restore_dependencies(NAME, environment(tmp_path, "b"))
