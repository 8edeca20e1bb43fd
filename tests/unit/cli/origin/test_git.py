"""Reading of git trees: what is recorded of them, and that nothing which they configure is run."""

import os
import subprocess
from pathlib import Path

import pytest

from trainyard_cli.git import GitTooSlow
from trainyard_cli.origin import git
from trainyard_cli.origin.git import without_credentials
from trainyard_protocol.views.origin import MAX_DIFF, JobOrigin


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, on main, as its own user has it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    directory = tmp_path / "tree"
    (directory / "trainer").mkdir(parents=True)
    (directory / "trainer" / "task.py").write_text("print(1)\n")
    (directory / "é.txt").write_text("a\n")
    run(directory, "init", "-q", "-b", "main")
    run(directory, "add", ".")
    run(directory, "commit", "-q", "-m", "first")
    return directory


def run(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    return subprocess.check_output(["git", *identity, *words], cwd=directory, text=True).strip()


def read(directory: Path, **given: bool) -> JobOrigin:
    return JobOrigin(git=git.read(directory, timeout_s=60, **given))


def test_clean_tree_is_its_commit_and_its_remote(tree: Path) -> None:
    run(tree, "remote", "add", "origin", "https://me:secret@example.com/a.git")
    run(tree, "remote", "add", "fork", "git@example.com:b.git")
    origin = read(tree / "trainer")
    assert origin.git is not None
    assert (origin.git.commit, origin.git.branch) == (run(tree, "rev-parse", "HEAD"), "main")
    assert (origin.git.remote, origin.git.dirty, origin.git.diff) == ("https://example.com/a.git", False, "")
    assert origin.summary().text == f"{origin.git.commit[:7]} (main)"
    run(tree, "config", "branch.main.remote", "fork")
    assert getattr(read(tree).git, "remote", "") == "git@example.com:b.git"


def test_changes_are_the_diff_and_untracked_files_are_named(tree: Path) -> None:
    (tree / "trainer" / "task.py").write_text("print(2)\n")
    (tree / "é.txt").unlink()
    run(tree, "mv", "trainer/task.py", "trainer/moved.py")
    (tree / "new file.txt").write_text("never sent")
    (tree / ".gitignore").write_text("*.log\n")
    (tree / "a.log").touch()
    run(tree, "config", "diff.noprefix", "true")
    run(tree, "config", "color.ui", "always")
    run(tree, "config", "diff.relative", "true")
    found = read(tree / "trainer").git
    assert found is not None
    assert found.changed == ("trainer/moved.py", "trainer/task.py", "é.txt")
    assert found.untracked == (".gitignore", "new file.txt")
    assert "never sent" not in found.diff
    assert JobOrigin(git=found).summary().text == f"{found.commit[:7]} (main, dirty, 3 files, 2 untracked)"
    clone = tree.parent / "clone"
    run(tree, "clone", "-q", str(tree), str(clone))
    subprocess.run(["git", "apply"], cwd=clone, input=found.diff, text=True, check=True)
    assert (clone / "trainer" / "moved.py").read_text() == "print(2)\n"
    assert not (clone / "é.txt").exists()


def test_diff_is_left_out_on_request(tree: Path) -> None:
    (tree / "é.txt").write_text("a secret\n")
    found = read(tree, with_diff=False).git
    assert found is not None
    assert (found.dirty, found.changed, found.diff, found.diff_note) == (True, ("é.txt",), "", git.NO_DIFF)


def test_detached_head_has_no_branch_and_a_new_repository_no_commit(tree: Path, tmp_path: Path) -> None:
    run(tree, "checkout", "-q", "--detach")
    assert "(detached HEAD)" in read(tree).summary().text
    new = tmp_path / "new"
    new.mkdir()
    run(new, "init", "-q", "-b", "main")
    (new / "a.py").touch()
    run(new, "add", "a.py")
    found = read(new).git
    assert found is not None
    assert (found.commit, found.changed, found.diff) == ("", ("a.py",), "")
    assert found.diff_note == "There is no commit to compare with."
    assert read(new).summary().text == "no commit (main, dirty, 1 file)"


def test_no_repository_and_no_git_are_no_origin(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git.read(tmp_path) is None
    assert git.read(tmp_path / "missing") is None
    monkeypatch.setenv("GIT_DIR", str(tree / ".git"))  # as in a hook
    assert git.read(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git.read(tree) is None


def test_huge_diff_is_cut_at_a_line(tree: Path) -> None:
    (tree / "é.txt").write_text("a line\n" * 400_000 + "\0 and \udcff", errors="surrogateescape")
    found = read(tree).git
    assert found is not None
    assert MAX_DIFF - 10 < len(found.diff) <= MAX_DIFF
    assert found.diff.endswith("+a line\n")
    assert found.diff_note == "It was cut after 1 MiB."


def test_many_files_are_counted(tree: Path) -> None:
    for number in range(1003):
        (tree / f"n{number}").touch()
    found = read(tree).git
    assert found is not None
    assert (len(found.untracked), found.more_files) == (1000, 3)
    assert "1000 or more untracked" in JobOrigin(git=found).summary().text


def test_nothing_that_a_repository_configures_is_run(tree: Path) -> None:
    mark = tree.parent / "was-run"
    program = tree.parent / "evil.sh"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {mark}\ncat\n')
    program.chmod(0o755)
    hooks = tree / ".git" / "hooks"
    for name in ("post-index-change", "fsmonitor-watchman", "pre-auto-gc"):
        (hooks / name).write_bytes(program.read_bytes())
        (hooks / name).chmod(0o755)
    (tree / ".gitattributes").write_text("* filter=evil diff=evil\n*.py filter=more\n")
    (tree / ".git" / "more").write_text(
        f'[filter "more"]\n clean = {program}\n process = {program}\n required = true\n'
    )
    of_core = ("fsmonitor", "pager", "editor", "sshCommand", "askPass")
    others = ("diff.external", "pager.diff", "pager.status", "credential.helper", "gpg.program")
    of_drivers = ("filter.evil.clean", "filter.evil.smudge", "diff.evil.command", "diff.evil.textconv")
    settings = dict.fromkeys((*(f"core.{name}" for name in of_core), *others, *of_drivers), str(program))
    settings |= {"alias.diff": f"!{program}", "alias.status": f"!{program}", "include.path": "more"}
    settings |= {"remote.origin.url": f"ext::{program}", "remote.origin.promisor": "true"}
    settings |= {"protocol.ext.allow": "always"}
    for name, value in settings.items():
        run(tree, "config", name, value)
    for path in ("trainer/task.py", "é.txt"):
        size = (tree / path).stat().st_size
        (tree / path).write_bytes(b"x" * size)  # of the same size, so that the content is compared
    blob = run(tree, "rev-parse", "HEAD:é.txt")
    (tree / ".git" / "objects" / blob[:2] / blob[2:]).unlink()  # git would fetch it
    mark.unlink(missing_ok=True)
    found = read(tree).git
    assert found is not None
    assert (found.dirty, found.remote) == (True, "")
    assert not mark.exists(), mark.read_text()
    run(tree, "-c", "core.fsmonitor=false", "config", "filter.a=b.clean", str(program))
    assert git.read(tree) is None
    assert not mark.exists(), mark.read_text()


def test_slow_git_is_ended(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "git").write_text("#!/bin/sh\nsleep 600\n")
    (tree / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tree}:{os.environ['PATH']}")
    with pytest.raises(GitTooSlow):
        git.read(tree, timeout_s=0.2)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@example.com/a.git", "https://example.com/a.git"),
        ("https://secret@example.com:8443/a.git?token=secret#secret", "https://example.com:8443/a.git"),
        ("https://me:sec/ret@example.com/a.git", "https://example.com/a.git"),
        ("https://me:sec@ret@example.com/a", "https://example.com/a"),
        ("https://example.com/@scope/a.git", "https://example.com/@scope/a.git"),
        ("https://[::1]/a.git", "https://[::1]/a.git"),
        ("ssh://git@example.com/a.git", "ssh://git@example.com/a.git"),
        ("ssh://git:secret@example.com/a.git", "ssh://example.com/a.git"),
        ("git@example.com:a.git", "git@example.com:a.git"),
        ("/srv/a.git", "/srv/a.git"),
        ("file:///srv/a.git", "file:///srv/a.git"),
        ("ext::sh -c 'curl secret'", ""),
        ("", ""),
    ],
)
def test_remote_loses_its_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
