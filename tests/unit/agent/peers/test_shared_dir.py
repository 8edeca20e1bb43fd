"""The mark in a job-dir: left by the agent with the primary, found by the others, wherever the directory begins."""

from pathlib import Path

import pytest

from trainyard_agent.peers import shared_dir


def test_mark_is_found_in_the_job_dir_or_in_the_first_directory_above_it(tmp_path: Path) -> None:
    for job_dir in (tmp_path, tmp_path / "not" / "yet"):
        mark = shared_dir.leave_mark(str(job_dir), "g")
        assert mark is not None
        (tmp_path / "not" / "yet").mkdir(parents=True, exist_ok=True)  # the program of the primary may make it
        shared_dir.find_mark(str(job_dir), "g")
        mark.unlink()


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
