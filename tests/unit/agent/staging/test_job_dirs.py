import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from beds.mounts import small_disk
from trainyard_agent.runtimes.base import ProgramUser
from trainyard_agent.staging.base import StagingFailed
from trainyard_agent.staging.job_dirs import JobDirMount, JobDirs, create_default
from trainyard_protocol.states import Reason
from unit.agent.stub_server import run_order

NOBODY = ProgramUser(65534, 65534, "nobody")
CHURN = """
import os
while True:
    for number in range(300):
        os.makedirs(f"{number}/checkpoint")
    for number in range(300):
        os.removedirs(f"{number}/checkpoint")
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def mount(dirs: JobDirs, job_dir: str, owner: str = "alice", user: ProgramUser | None = None) -> JobDirMount:
    order = run_order("1" * 32, "master-replica-0", jobDir=job_dir).model_copy(update={"owner": owner})
    made = dirs.prepare(order, user)
    assert made is not None
    return made


def refusal(dirs: JobDirs, job_dir: str, owner: str = "alice") -> str:
    with pytest.raises(StagingFailed) as caught:
        mount(dirs, job_dir, owner)
    return caught.value.staging.message


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir(0o755)
    return path


def test_first_directory_of_its_owner_is_mounted(root: Path) -> None:
    dirs = JobDirs((root,))
    for below in ("sweep", "sweep/trials/1"):
        made = mount(dirs, f"{root}/p/alice/{below}")
        assert made == JobDirMount(f"{root}/p/alice/sweep", f"{root}/p/alice/sweep")
        assert (root / "p" / "alice" / below).is_dir()
    assert (root / "p").stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
    given = root.parent / "given"
    given.symlink_to(root)
    by_link = mount(JobDirs((given,)), f"{given}/p/alice/a/b")
    assert by_link == JobDirMount(f"{root}/p/alice/a", f"{given}/p/alice/a")


def test_job_dir_of_the_one_user_is_mounted_itself(root: Path) -> None:
    dirs = JobDirs((root.parent, root), one_user=True)
    assert mount(dirs, f"{root}/a/b", owner="") == JobDirMount(f"{root}/a/b", f"{root}/a/b")
    assert [(root / way).stat().st_mode & 0o777 for way in ("a", "a/b")] == [0o711, 0o700]
    chosen = run_order("1" * 32, "master-replica-0").model_copy(update={"job_dir": f"{root}/p/j"})
    dirs.prepare(chosen, None)
    assert [(root / way).stat().st_mode & 0o777 for way in ("p", "p/j")] == [0o711, 0o700]


@pytest.mark.parametrize("below", ["p/bob/a", "q/alice/a", "p/alice", "", "p/alice/../bob/a", "../outside/a/b"])
def test_job_dir_that_is_not_its_owners_is_refused(root: Path, below: str) -> None:
    message = refusal(JobDirs((root,)), f"{root}/{below}")
    assert message.endswith(f"may mount only directories below {root}/p/alice (its --job-dir-root).")
    assert not list(root.iterdir())


def test_job_dir_that_cannot_be_used_says_why(root: Path) -> None:
    dirs = JobDirs((root,), one_user=True)
    assert "--job-dir-root" in refusal(JobDirs(), f"{root}/a")
    assert "neither a gs:// address nor an absolute path" in refusal(dirs, "relative/a")
    assert "may mount only directories below" in refusal(dirs, f"{root}")
    assert "does not say whose job it is" in refusal(JobDirs((root,)), f"{root}/p/alice/a", owner="")
    (root / "file").touch()
    assert "cannot be created: Not a directory" in refusal(dirs, f"{root}/file/a")


@pytest.mark.parametrize("one_user", [True, False])
@pytest.mark.parametrize("link", ["p", "p/alice", "p/alice/a", "p/alice/a/b"])
def test_link_below_a_root_is_refused(root: Path, link: str, one_user: bool) -> None:
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(elsewhere)
    name = (root / link).name
    message = refusal(JobDirs((root,), one_user), f"{root}/p/alice/a/b/c")
    assert message.endswith(f"{name} is a link to {elsewhere}; a job-dir must lead through no link.")
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("shared", ["", "p", "p/alice"])
@pytest.mark.parametrize("open_it", [lambda path: path.chmod(0o775), lambda path: os.chown(path, 1234, -1)])
@as_root
def test_directory_that_others_could_replace_is_refused(
    root: Path, shared: str, open_it: Callable[[Path], None]
) -> None:
    (root / "p" / "alice").mkdir(parents=True)
    open_it(root / shared)
    with pytest.raises(StagingFailed) as caught:
        mount(JobDirs((root,)), f"{root}/p/alice/a")
    assert caught.value.staging.reason is Reason.HOST_FAILED
    assert f"may write to {root / shared}, in which" in caught.value.staging.message
    assert mount(JobDirs((root,), one_user=True), f"{root}/p/alice/a")


@as_root
def test_what_root_has_in_a_job_dir_is_given_to_its_user(root: Path) -> None:
    inside = root / "p" / "alice" / "a"
    inside.mkdir(parents=True)
    for name, owner in (("checkpoint", 0), ("data", 1234)):
        (inside / name).touch(0o755)
        os.chown(inside / name, owner, owner)
    (inside / "checkpoint").chmod(0o4755)
    (root / "outside").touch()
    (inside / "link").symlink_to(root / "outside")
    mount(JobDirs((root,)), f"{inside}/b", user=replace(NOBODY, gid=7))
    found = {path.name: path.lstat() for path in (inside, *inside.iterdir(), root / "p" / "alice", root / "outside")}
    assert {name: (one.st_uid, one.st_gid) for name, one in found.items()} == {
        **dict.fromkeys(("a", "b", "checkpoint", "link"), (65534, 7)),
        "data": (1234, 1234),
        **dict.fromkeys(("alice", "outside"), (0, 0)),
    }
    assert found["checkpoint"].st_mode & 0o6000 == 0


@as_root
def test_job_dir_of_which_files_disappear_meanwhile_is_given(root: Path) -> None:
    inside = root / "p" / "alice" / "a"
    inside.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", CHURN], cwd=inside) as churning:
        try:
            for _ in range(20):
                mount(JobDirs((root,)), str(inside), user=NOBODY)
        finally:
            churning.kill()
    assert inside.stat().st_uid == NOBODY.uid


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


def test_job_dir_on_a_disk_that_takes_nothing_is_the_machines_fault(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        dirs = JobDirs((disk.path,), one_user=True)
        create_default(str(disk.path / "p"))
        for words, stop, go_on in (
            ("No space left on device", disk.forbid_files, disk.allow_files),
            ("Read-only file system", disk.forbid_writes, disk.allow_writes),
        ):
            stop()
            failures = []
            for prepare in (lambda: mount(dirs, f"{disk.path}/a"), lambda: create_default(f"{disk.path}/b")):
                with pytest.raises(StagingFailed) as caught:
                    prepare()
                failures.append(caught.value.staging)
            go_on()
            assert [one.reason for one in failures] == [Reason.HOST_FAILED] * 2, failures
            assert all(words in one.message and "are free" in one.message for one in failures), failures
