"""Mounts of a job: what a config may say of them."""

from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.mount_rules import variable_of
from trainyard_protocol.job.config.validation import check
from trainyard_protocol.job.machines import default_catalog
from trainyard_protocol.job.training_input import parse_training_input

PACKAGE = {"scaleTier": "BASIC", "packageUris": ["gs://b/a.whl"], "pythonModule": "trainer.task", "region": "r"}


def test_names_and_paths_are_returned_as_they_were_sent() -> None:
    mounts = [{"name": "imagenet-21k", "path": "/data"}, {"name": "scans"}, {"name": "x", "path": "/tmp/x"}]
    training_input = parse_training_input({"mounts": mounts})
    assert training_input.canonical() == training_input.snake_case() == {"mounts": mounts}
    assert [mount.target for mount in training_input.mounts] == ["/data", "/mnt/scans", "/tmp/x"]
    assert variable_of("imagenet-21k") == "TRAINYARD_MOUNT_IMAGENET_21K"


@pytest.mark.parametrize(
    ("mount", "field", "says"),
    [
        ({"name": "/data/x"}, "mounts[0].name", "'/data/x' is not a mount's name: a lower-case letter, then"),
        ({"name": "a" * 41}, "mounts[0].name", "at most 40 characters"),
        ({"name": "a-"}, "mounts[0].name", "is not a mount's name"),
        ({"path": "/data"}, "mounts[0].name", "is required"),
        *(
            ({"name": "a", "path": path}, "mounts[0].path", "must be an absolute path such as /data")
            for path in ("data", "/", "/a/../b", "/a/./b", "/a/", "//a", "/a b", "/a:ro", f"/{'a' * 101}")
        ),
        *(
            ({"name": "a", "path": path}, "mounts[0].path", "must not be in the way of")
            for path in ("/usr", "/usr/lib", "/proc/x", "/dev/shm", "/etc", "/tmp", "/home", "/opt", "/root", "/run")
        ),
        ({"name": "a", "path": "/opt/trainyard/cache"}, "mounts[0].path", "in the way of /opt/trainyard; this is"),
    ],
)
def test_wrong_mounts_are_refused_with_what_is_allowed(mount: Any, field: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_training_input({"mounts": [mount]})
    (violation,) = caught.value.violations
    assert (violation.field, says in violation.description) == (field, True), violation


def test_more_than_sixteen_mounts_are_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_training_input({"mounts": [{"name": f"a{n}"} for n in range(17)]})
    assert "may list at most 16 mounts; it lists 17." in caught.value.message


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"mounts": [{"name": "a"}, {"name": "a", "path": "/b"}]}, "mounts[1].name", "a is mounted already."),
        ({"mounts": [{"name": "a", "path": "/data"}, {"name": "b", "path": "/data/b"}]}, "mounts[1].path",
         "/data/b is in the way of /data, the path of another mount: choose"),
        ({"mounts": [{"name": "a", "path": "/data"}], "secrets": [{"name": "K", "file": "/data/key"}]},
         "mounts[0].path", "/data is in the way of /data/key, a secret's file: choose"),
        ({"mounts": [{"name": "a", "path": "/mnt/jobs/p"}], "jobDir": "/mnt/jobs/"}, "mounts[0].path",
         "/mnt/jobs/p is in the way of /mnt/jobs, the job-dir: choose"),
    ],
)  # fmt: skip
def test_mounts_in_each_others_way_are_refused(given: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(parse_training_input({**PACKAGE, **given}), default_catalog())
    (violation,) = caught.value.violations
    assert (violation.field, says in violation.description) == (field, True), violation
