from pathlib import PurePosixPath

import pytest

from trainyard_protocol.job.job_dirs import default_job_dir, is_owners, moved_job_dir, owner_parts

OWNERS = [
    "alice",
    "alice@example.com",
    ".",
    "..",
    ".ssh",
    "a/b",
    "../bob",
    "a%2Fb",
    "%2E",
    "ü",
    "a b",
    "-rf",
    "\n",
]


def test_every_owner_has_one_visible_directory_of_its_own() -> None:
    names = [owner_parts("p", owner)[1] for owner in OWNERS]
    assert len(set(names)) == len(OWNERS)
    assert not any("/" in name or name.startswith(".") or not name.isprintable() for name in names)
    assert names[:2] == ["alice", "alice@example.com"]


def test_default_job_dir_has_the_owner_where_there_is_one() -> None:
    assert default_job_dir("/jobs/", "p", "alice", "j") == "/jobs/p/alice/j"
    assert default_job_dir("gs://bucket", "p", "", "j") == "gs://bucket/p/j"


def test_job_dir_that_an_earlier_release_chose_is_found_below_the_root_of_today() -> None:
    cases = {  # given, job: where it is, and the state directory before
        ("/old/state/jobs/j", "j"): ("/new/jobs/j", "/old/state"),
        ("/old/state/jobs/p/j", "j"): ("/new/jobs/p/j", "/old/state"),
        ("/old/jobs/p/study", "study.7"): ("/new/jobs/p/study", "/old"),
        ("/old/jobs/p/study/7", "study.7"): ("/new/jobs/p/study/7", "/old"),
        ("/old/jobs/p/other", "j"): None,
        ("/old/jobs/q/j", "j"): None,
        ("/data/j", "j"): None,
        ("/new/jobs/p/j", "j"): None,
        ("gs://bucket/jobs/p/j", "j"): None,
    }
    assert {case: moved_job_dir(case[0], "/new/jobs", "p", case[1]) for case in cases} == cases
    assert moved_job_dir("/old/jobs/p/j", "gs://bucket/jobs", "p", "j") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("p/alice/j", True),
        ("p/alice/a/b", True),
        ("p/alice", False),  # it is the agent's: no job replaces what lies in it
        ("p/bob/j", False),
        ("q/alice/j", False),
        ("p/alice/../bob/j", False),
        ("p/alice/j/../..", False),
    ],
)
def test_directory_of_an_owner_is_named_by_nobody_else(path: str, expected: bool) -> None:
    assert is_owners(PurePosixPath(path), "p", "alice") is expected
    assert not is_owners(PurePosixPath(path), "p", "")
