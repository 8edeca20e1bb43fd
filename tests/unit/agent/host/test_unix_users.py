"""Trees that a user of a job made and root takes over, and tags of processes, which anybody can set."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from trainyard_agent.host import process_tags, unix_users

USER, OTHER = 310_000, 310_001
RENAME = "import os, sys; os.fchdir(int(sys.argv[1])); os.rename('below', 'away')"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away and starts programs of others")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory that is open to everybody, as what is in it."""
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").touch()
    (tree / "below" / "link").symlink_to("/etc/passwd")
    unix_users.give(tree, USER)
    for path in (tree, tree / "below", tree / "below" / "file"):
        path.chmod(0o6777)
    return tree


def rename(directory: int) -> int:
    """Try, as another user who has the directory open. Returns the exit status."""
    command = ["python3", "-c", RENAME, str(directory)]
    done = subprocess.run(command, user=OTHER, group=OTHER, extra_groups=[], pass_fds=[directory], cwd="/", check=False)
    return done.returncode


def test_sealed_tree_is_roots_and_shut_to_who_still_has_it_open(tree: Path) -> None:
    directory = os.open(tree, os.O_RDONLY)
    target = Path("/etc/passwd")
    before = target.stat()
    try:
        unix_users.seal(tree, USER)
        assert rename(directory) != 0
    finally:
        os.close(directory)
    for path in (tree, *tree.rglob("*")):
        found = path.lstat()
        assert (found.st_uid, found.st_gid) == (0, 0)
        assert path.is_symlink() or stat.S_IMODE(found.st_mode) == 0o755
    assert (target.stat().st_uid, target.stat().st_mode) == (before.st_uid, before.st_mode)


def test_tree_with_a_file_of_another_user_is_not_sealed(tree: Path) -> None:
    os.chown(tree / "below" / "file", OTHER, OTHER)
    with pytest.raises(OSError, match=f"below/file belongs to the user {OTHER}"):
        unix_users.seal(tree, USER)


RUN = "run"


def test_tag_that_another_user_has_set_does_not_count_for_a_run_with_a_user_of_its_own() -> None:
    tag = process_tags.tag(RUN, "master-replica-0")
    own, forged = (
        subprocess.Popen(["sleep", "1000"], env=tag, user=user, group=user, extra_groups=[]) for user in (USER, OTHER)
    )
    with own, forged:
        try:
            assert process_tags.tagged(RUN, user=USER) == [own.pid]
            assert set(process_tags.tagged(RUN)) == {own.pid, forged.pid}
            process_tags.kill_tagged(RUN, user=USER)
            assert process_tags.tagged(RUN) == [forged.pid]
        finally:
            own.kill()
            forged.kill()
