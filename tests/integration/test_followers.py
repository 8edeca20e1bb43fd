"""Pages that follow one chatty job of a real server: each gets each line exactly once, in order. A small run of
`benchmarks.followers`, which measures as well."""

from pathlib import Path

import pytest

from benchmarks.followers.__main__ import Phase, measure, report
from benchmarks.followers.local_server import serving

pytestmark = pytest.mark.e2e


def test_followers_of_a_chatty_job_get_every_line_while_other_jobs_are_placed(tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        phases = measure(address, followers=20, lines=1000, seconds=5, rounds=1)
    alone, followed = phases
    assert (alone.followers, followed.followers) == (0, 20)
    assert alone.placed_s
    assert followed.placed_s
    assert followed.read["wrong"] == []
    (lines,) = followed.read["lines"]
    assert lines > 1000
    assert followed.complete


def test_report_says_what_was_measured_and_what_went_wrong() -> None:
    read = {"lines": [10], "wrong": [], "lag_median_s": 0.2, "lag_p99_s": 0.4, "lag_most_s": 0.5}
    alone = Phase(0, placed_s=[0.1, 0.2, 0.3], pings_s=[0.01], cores=0.5)
    beside = Phase(100, placed_s=[0.2, 0.3, 0.4], pings_s=[0.02], cores=0.75, read=read)
    assert beside.complete
    text = "\n".join(report([alone, beside], 1000, 30))
    assert "| 0 | 200.0 (300.0, 3) | 10.0 (10.0) | 0.50 |" in text
    assert "| 100 | 300.0 (400.0, 3) | 20.0 (20.0) | 0.75 | 200 (400, 500) | 10 | 10 | all |" in text
    assert "with followers / without: 1.50 (rounds: 1.50 to 1.50)" in text
    assert not Phase(100, read=read | {"wrong": ["after 5 came [7]"]}).complete
    assert not Phase(100, read=read | {"lines": [9, 10]}).complete
