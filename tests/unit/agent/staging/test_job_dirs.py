from pathlib import Path

import pytest

from trainyard_agent.staging.base import StagingFailed
from trainyard_agent.staging.job_dirs import create_default, prepare


def refusal(job_dir: Path | str, *roots: Path) -> str:
    with pytest.raises(StagingFailed) as caught:
        prepare(str(job_dir), roots)
    return caught.value.staging.message


def test_job_dir_below_a_root_is_made(tmp_path: Path) -> None:
    assert prepare(f"{tmp_path}/a/b", [tmp_path]) == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "link/x"])
def test_job_dir_that_leads_out_of_its_root_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    assert "may mount only directories below" in refusal(root / name, root)
    assert not (tmp_path / "outside").exists()


def test_job_dir_without_any_root_is_refused(tmp_path: Path) -> None:
    assert "--job-dir-root" in refusal(tmp_path / "a")


def test_job_dir_that_is_no_absolute_path_is_refused(tmp_path: Path) -> None:
    assert "neither a gs:// address nor an absolute path" in refusal("s3://bucket/a", tmp_path)


def test_job_dir_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be created: Not a directory" in refusal(tmp_path / "file" / "a", tmp_path)


def test_default_job_dir_is_made_for_its_user_alone_and_a_bucket_is_left(tmp_path: Path) -> None:
    made = tmp_path / "jobs" / "p" / "j"
    for _ in range(2):
        create_default(str(made))
    assert made.stat().st_mode & 0o777 == 0o700
    create_default("")
    create_default("gs://bucket/p/j")
    made.rmdir()
    made.write_text("in the way")
    with pytest.raises(StagingFailed, match="cannot be created"):
        create_default(str(made))
