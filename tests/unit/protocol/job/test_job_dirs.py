from pathlib import PurePosixPath

from trainyard_protocol.job.job_dirs import (
    default_job_dir,
    has_bucket_of_project,
    is_owners,
    owner_parts,
    root_of_project,
)
from trainyard_protocol.net.gcs import problem_of

OWNERS = ["alice", "alice@example.com", ".", "..", ".ssh", "a/b", "../bob", "a%2Fb", "%2E", "ü", "a b", "-rf", "\n"]


def test_every_owner_has_one_visible_directory_of_its_own() -> None:
    names = [owner_parts("p", owner)[1] for owner in OWNERS]
    assert len(set(names)) == len(OWNERS)
    assert not any("/" in name or name.startswith(".") or not name.isprintable() for name in names)
    assert names[:2] == ["alice", "alice@example.com"]


def test_default_job_dir_has_the_owner_where_there_is_one() -> None:
    assert default_job_dir("/jobs/", "p", "alice", "j") == "/jobs/p/alice/j"
    assert default_job_dir("gs://bucket", "p", "", "j") == "gs://bucket/p/j"


def test_each_project_has_a_bucket_of_its_own_with_a_name_that_buckets_may_have() -> None:
    root = "gs://trainyard-{project}"
    projects = ["local", "team-a", "A", "a", "Team-a", "team_a", "a.b", "a:b", "google", "x" * 128, "a-"]
    roots = [root_of_project(root, project) for project in projects]
    assert roots[:2] == ["gs://trainyard-local", "gs://trainyard-team-a"]
    assert len(set(roots)) == len(projects)
    assert [problem_of(there) for there in roots] == [""] * len(projects)
    given = {root: True, "gs://b": False, "/mnt/{project}": False, "": False}
    assert {there: has_bucket_of_project(there) for there in given} == given


def test_directory_of_an_owner_is_named_by_nobody_else() -> None:
    table = {
        "p/alice/j": True,
        "p/alice/a/b": True,
        "p/alice": False,  # it is the agent's: no job replaces what lies in it
        "p/bob/j": False,
        "q/alice/j": False,
        "p/alice/../bob/j": False,
        "p/alice/j/../..": False,
    }
    assert {path: is_owners(PurePosixPath(path), "p", "alice") for path in table} == table
    assert not any(is_owners(PurePosixPath(path), "p", "") for path in table)
