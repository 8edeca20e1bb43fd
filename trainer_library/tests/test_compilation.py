"""The compilation cache of trainings in real processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trainyard_trainer.processes import compilation

if TYPE_CHECKING:
    from conftest import Launcher

MISS = "PERSISTENT COMPILATION CACHE MISS"


def test_second_start_of_a_gang_and_its_evaluator_compiles_nothing_and_trains_bitwise_equal(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    environment: dict[str, Any] = {
        "JAX_COMPILATION_CACHE_DIR": "", "JAX_EXPLAIN_CACHE_MISSES": "1", "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    ends = []
    # Of a job directory in a bucket, each start has another, as this machine has the cache.
    for place in (str(tmp_path / "job"), "gs://bucket/compilation"):
        for start in (1, 2):
            job_dir = f"{place}/{start}" if place.startswith("gs://") else place
            gang = launcher.gang("--steps", "3", "--job-dir", job_dir, evaluators=1, **environment)
            gang.succeed()
            assert {MISS in trainer.stderr for trainer in gang} == {start == 1}, gang["chief-0"].describe_job()
            ends.append(gang["chief-0"].parameters_sha256)
            if start == 1 and job_dir == place:
                for checkpoint in ("checkpoints", "model"):
                    (tmp_path / "job" / checkpoint).rename(tmp_path / checkpoint)
    assert len(set(ends)) == 1
    cached = [tmp_path / "job/compiled", tmp_path / "cache/trainer/compiled"]
    for folder in cached:
        assert folder.stat().st_mode & 0o777 == 0o700
        (kind,) = folder.iterdir()
        assert sorted(path.name for path in kind.iterdir()) == ["evaluator-0", "trainer-0", "trainer-1"]

    cached[0].chmod(0o777)  # others could write code for this process
    alone = launcher.alone("--steps", "3", "--job-dir", str(tmp_path / "job"), **environment)
    assert alone.wait() == 0, alone.stderr
    assert "Each start compiles anew, as there is no compilation cache" in alone.stderr
    assert list((cached[0] / kind.name).iterdir()) == list((cached[0] / kind.name).glob("*-[01]"))


def test_cache_directory_that_another_user_could_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for name in ("open", "link"):
        with pytest.raises(PermissionError, match=f"{name} must be a directory of this user"):
            compilation._claim(tmp_path / name)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        compilation._claim(tmp_path / "file")
    compilation._claim(tmp_path / "own")
