"""Reading of git trees: what is recorded of them, and that nothing which they configure is run."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trainyard_cli.origin import git
from trainyard_cli.origin.git import without_credentials
from trainyard_programs.git import GitError, GitTooSlow
from trainyard_protocol.answers.origin import MAX_DIFF, JobOrigin

Change = Callable[[Path, Path], object]
"""A change of a hostile tree, which is after the directory of a victim."""


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
    settings |= {"protocol.ext.allow": "always", "core.hooksPath": str(hooks), "filter.evil.process": str(program)}
    settings |= {"core.attributesFile": str(tree / ".gitattributes")}
    (tree / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil\n")
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


def configure(key: str, value: str) -> Change:
    return lambda tree, victim: run(tree, "config", key, value.replace("VICTIM", str(victim)))


def link(name: str, target: str) -> Change:
    def change(tree: Path, victim: Path) -> None:
        if (tree / name).is_dir():
            shutil.rmtree(tree / name)
        (tree / name).unlink(missing_ok=True)
        (tree / name).symlink_to(victim / target)

    return change


def write(name: str, text: str) -> Change:
    def change(tree: Path, victim: Path) -> None:
        if name == ".git":
            shutil.rmtree(tree / ".git")
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(
            text.replace("VICTIM", str(victim)).replace("COMMIT", run(victim, "rev-parse", "HEAD"))
        )

    return change


def stage(name: str, mode: str = "100644") -> Change:
    """An entry of the index, whose name git itself might refuse."""

    def change(tree: Path, victim: Path) -> None:
        other = name.replace("..", "xx")
        hashed = run(tree, "hash-object", "-w", "é.txt") if mode == "100644" else run(tree, "rev-parse", "HEAD")
        run(tree, "update-index", "--add", "--cacheinfo", f"{mode},{hashed},{other}")
        index = (tree / ".git" / "index").read_bytes()[:-20].replace(other.encode(), name.encode())
        (tree / ".git" / "index").write_bytes(index + hashlib.sha1(index).digest())

    return change


def share_index(tree: Path, victim: Path) -> None:
    """Give a tree the index of the victim, whose larger part is in a file that a link leads to."""
    run(victim, "update-index", "--split-index")
    (shared,) = (victim / ".git").glob("sharedindex.*")
    shutil.copy(victim / ".git" / "index", tree / ".git" / "index")
    (tree / ".git" / shared.name).symlink_to(shared)


def embed(tree: Path, victim: Path) -> None:
    """Make the tree itself a repository, whose `.git` is none for git."""
    for name in ("HEAD", "config", "objects", "refs"):
        (tree / ".git" / name).rename(tree / name)
    run(tree, "--git-dir", str(tree), "config", "core.worktree", str(victim))
    (tree / ".git" / "HEAD").write_text("nothing\n")
    for name in ("objects", "refs"):
        (tree / ".git" / name).mkdir()


OF_ANOTHER = "which is not for this tree"
HOSTILE: Mapping[str, tuple[str, tuple[Change, ...]]] = {
    "work tree": ("names another tree", (configure("core.worktree", "VICTIM"),)),
    "include": ("", (configure("include.path", "VICTIM/.git/config"),)),
    "work tree by an include": ("",
     (write(".git/more", "[core]\n worktree = VICTIM\n"), configure("includeIf.gitdir:/.path", "more"))),
    "work tree by a second configuration": ("",
     (configure("extensions.worktreeConfig", "true"),
     write(".git/config.worktree", "[core]\n worktree = VICTIM\n excludesFile = VICTIM/secret\n"))),
    "files of patterns and attributes": ("",
     (configure("core.excludesFile", "VICTIM/secret"), configure("core.attributesFile", "VICTIM/secret"))),
    "linked patterns": ("is a link", (link(".git/info/exclude", "secret"),)),
    "linked folder of patterns": ("is a link", (link(".git/info", "."),)),
    "linked reference": ("is a link",
     (link(".git/refs/heads/main", ".git/refs/heads/main"),
     write(".git/objects/info/alternates", "VICTIM/.git/objects"))),
    "linked folder of references": ("is a link",
     (link(".git/refs/heads/sub", ".git/refs/heads"), write(".git/HEAD", "ref: refs/heads/sub/main\n"),
     write(".git/objects/info/alternates", "VICTIM/.git/objects"))),
    "linked shared index": ("sharedindex.* is a link", (share_index,)),
    "commit that it does not have": ("names no commit that it has", (write(".git/HEAD", "COMMIT"),)),
    "objects over HTTP": ("names no commit that it has",
     (write(".git/objects/info/http-alternates", "VICTIM/.git/objects"), write(".git/HEAD", "COMMIT"))),
    "tree that is a repository": ("git does not take", (embed,)),
    "alternates": (git.OTHER_OBJECTS,
     (write(".git/objects/info/alternates", "VICTIM/.git/objects"), write(".git/HEAD", "COMMIT"))),
    "linked objects": ("is a link", (link(".git/objects", ".git/objects"), write(".git/HEAD", "COMMIT"))),
    "linked folder of objects": (git.OTHER_OBJECTS,
     (link(".git/objects/pack", ".git/objects/pack"), write(".git/refs/heads/main", "COMMIT"))),
    "linked refs": ("is a link", (link(".git/refs", ".git/refs"), link(".git/objects", ".git/objects"))),
    "linked index": ("is a link", (link(".git/index", ".git/index"),)),
    "linked repository": ("is a link", (link(".git", ".git"),)),
    "file that names a repository": (OF_ANOTHER, (write(".git", "gitdir: VICTIM/.git"),)),
    "common directory": ("points to another repository", (write(".git/commondir", "VICTIM/.git"),)),
    "work tree that its repository does not know": (OF_ANOTHER,
     (write("fake/commondir", "VICTIM/.git"), write("fake/HEAD", "ref: refs/heads/main"),
     write(".git", "gitdir: fake"))),
    "names with ..": ("index of .* names ../victim/secret", (stage("../victim/secret"),)),
    "names beyond a link": ("", (link("link", "."), stage("link/secret"))),
    "submodule that leads out": ("", (write("sub/.git", "gitdir: VICTIM/.git"), stage("sub", "160000"))),
    "submodule by link": ("", (link("sub", "."), stage("sub", "160000"))),
    "submodule with a linked repository": ("", (write("sub/x", ""), link("sub/.git", ".git"), stage("sub", "160000"))),
    "file of modules": ("", (write(".gitmodules", '[submodule "x"]\n path = ../victim\n url = VICTIM\n'),)),
}  # fmt: skip


def test_hostile_repository_shows_nothing_of_elsewhere(tree: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("SECRET\n")
    run(victim, "init", "-q", "-b", "main")
    run(victim, "remote", "add", "origin", "https://example.com/SECRET.git")
    run(victim, "add", ".")
    run(victim, "commit", "-q", "-m", "of another")
    run(victim, "repack", "-adq")
    own = run(victim, "rev-parse", "HEAD")
    problems = []
    for title, (expected, changes) in HOSTILE.items():
        hostile = tmp_path / "copy"
        shutil.rmtree(hostile, ignore_errors=True)
        shutil.copytree(tree, hostile, symlinks=True)
        (hostile / "é.txt").write_text("changed\n")
        for change in changes:
            change(hostile, victim)
        found = message = ""
        try:
            origin = git.read(hostile, timeout_s=60)
            assert origin is not None
            found, message = origin.model_dump_json(), origin.diff_note
            known = {"names beyond a link": {"link/secret"}}.get(title, set())
            if (names := {*origin.changed, *origin.untracked} - known) - {
                *("é.txt", "link", "sub", "sub/", ".gitmodules", "fake/")
            }:
                problems.append(f"{title}: shows {names}")
            if not message and "+changed" not in origin.diff:
                problems.append(f"{title}: the tree's own change is missing")
        except GitError as error:
            message = str(error)
        if "SECRET" in found or (own in found and message != git.OTHER_OBJECTS):
            problems.append(f"{title}: shows {found}")
        if not re.search(expected, message) or (message and not expected):
            problems.append(f"{title}: says {message!r}")
    assert not problems, "\n".join(problems)


def test_variables_of_git_change_nothing(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, mark = tmp_path / "victim", tmp_path / "was-run"
    run(tmp_path, "clone", "-q", str(tree), str(victim))
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    (tree / "é.txt").write_text("changed\n")
    expected = read(tree)
    rows = {
        **dict.fromkeys(("GIT_WORK_TREE", "GIT_CEILING_DIRECTORIES", "GIT_PREFIX"), str(victim)),
        **dict.fromkeys(("GIT_DIR", "GIT_COMMON_DIR"), str(victim / ".git")),
        "GIT_INDEX_FILE": str(victim / ".git" / "index"),
        "GIT_NAMESPACE": "other",
        **dict.fromkeys(("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"), str(victim / ".git" / "objects")),
        **dict.fromkeys(("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH_COMMAND", "GIT_ASKPASS"), str(program)),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": str(program),
        "GIT_CONFIG_PARAMETERS": f"'core.worktree'='{victim}'",
        "GIT_DIFF_OPTS": "-u0",
    }
    wrong = []
    for name in [*(name for name in rows if not name.startswith("GIT_CONFIG")), "GIT_CONFIG"]:
        with monkeypatch.context() as variables:
            for given in rows if name == "GIT_CONFIG" else (name,):
                if given.startswith(name):
                    variables.setenv(given, rows[given])
            if read(tree) != expected or mark.exists():
                wrong.append(name)
    assert not wrong


def test_linked_work_trees_and_submodules_are_read(tree: Path, tmp_path: Path) -> None:
    run(tree, "worktree", "add", "-q", str(tmp_path / "linked"))
    run(tmp_path, "-c", "protocol.file.allow=always", "clone", "-q", str(tree), str(tmp_path / "outer"))
    run(tmp_path / "outer", "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tree), "sub")
    for directory in (tmp_path / "linked", tmp_path / "outer" / "sub", tmp_path / "outer"):
        (directory / "é.txt").write_text("changed\n")
        found = read(directory).git
        assert found is not None
        assert "+changed" in found.diff, directory
    run(tmp_path / "outer", "add", "-A")
    run(tmp_path / "outer", "commit", "-qm", "with a module")
    run(tmp_path / "outer" / "sub", "commit", "-qam", "next")
    found = read(tmp_path / "outer").git
    assert found is not None
    assert found.changed == ("sub",)
    assert f"+Subproject commit {run(tmp_path / 'outer' / 'sub', 'rev-parse', 'HEAD')}" in found.diff


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
