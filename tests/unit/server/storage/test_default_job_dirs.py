from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainyard_protocol.errors import FailedPrecondition
from trainyard_server.storage.default_job_dirs import DefaultJobDirs

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_job_keeps_the_default_of_its_submission_whatever_is_set_later(tmp_path: Path) -> None:
    assert DefaultJobDirs.noted(tmp_path, "", START).at(START) == ""
    assert list(tmp_path.iterdir()) == [], "nothing is noted before there is something"
    for hours, root in ((1, "gs://a"), (2, "gs://a"), (3, "/mnt"), (4, "")):
        dirs = DefaultJobDirs.noted(tmp_path, root, START + hours * HOUR)
    times = {0.0: "", 1.0: "gs://a", 2.5: "gs://a", 3.0: "/mnt", 4.0: "", 9.0: ""}
    assert {hours: dirs.at(START + hours * HOUR) for hours in times} == times


@pytest.mark.parametrize("text", ["{", "[1]", '[["yesterday", "a"]]'])
def test_damaged_file_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "default-job-dirs.json").write_text(text)
    with pytest.raises(FailedPrecondition, match="is damaged: restore it"):
        DefaultJobDirs.noted(tmp_path, "", START)
