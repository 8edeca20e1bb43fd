"""Which files are the program: in checkouts of git and elsewhere, with links, caches, environments and secrets."""

import hashlib
import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainyard_programs.files import ProgramListing, checkout_of, list_files
from trainyard_programs.files import listing as files
from trainyard_protocol.errors import InvalidArgument

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo\n-----END RSA PRIVATE KEY-----\n"
CACHE_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# a cache\n"
VENV = {"pyvenv.cfg": "home = /usr/bin\n", "bin/python": "", "lib/site.py": ""}


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def run(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    return subprocess.check_output(["git", *identity, *words], cwd=directory, text=True, stderr=subprocess.STDOUT)


def write(root: Path, contents: Mapping[str, str]) -> None:
    """Write files, and links where the content begins with `->`."""
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> ").replace("ROOT", str(root)))
        else:
            path.write_text(text)


def shown(listing: ProgramListing) -> tuple[set[str], dict[str, str]]:
    """The names that are sent, links with `-> TARGET`, and what is left out."""
    sent = {f"{name} -> {file.link}" if file.link else name for name, file in listing.files.items()}
    return sent, {entry.name: entry.reason for entry in listing.left_out}


@dataclass(frozen=True)
class Case:
    """A tree, with the names that are tracked (None: outside of git), and what is sent of it."""

    contents: Mapping[str, str]
    sent: set[str]
    left_out: Mapping[str, str]
    tracked: tuple[str, ...] | None = None
    empty: tuple[str, ...] = ()


def venv(name: str) -> dict[str, str]:
    return {f"{name}/{inner}": text for inner, text in VENV.items()}


CASES: Mapping[str, Case] = {
    "names that environments and builds often have are no reason": Case(
        {"env/a.py": "", "venv/b.py": "", "build/c.py": "", "dist/d.py": "", ".hidden/e": "", ".config": ""},
        {"env/a.py", "venv/b.py", "build/c.py", "dist/d.py", ".hidden/e", ".config"},
        {},
    ),
    "environments are found by what they have": Case(
        {"a.py": "", **venv("env"), **venv("deep/.x"), "conda/conda-meta/history": "", "conda/bin/python": ""},
        {"a.py"},
        {"env": files.ENVIRONMENT, "deep/.x": files.ENVIRONMENT, "conda": files.ENVIRONMENT},
        empty=(),
    ),
    "an environment in the directory of the program itself": Case(
        {"a.py": "", "pyvenv.cfg": "", "bin/activate": "", "bin/python": "", "lib/python3.11/x.py": "", "share/x": ""},
        {"a.py", "share/x"},
        {"pyvenv.cfg": files.ENVIRONMENT, "bin": files.ENVIRONMENT, "lib": files.ENVIRONMENT},
    ),
    "caches": Case(
        {"a.py": "", "a.pyc": "", "__pycache__/a": "", "p/.mypy_cache/x": "", "node_modules/x": "", ".hg/x": ""}
        | {"marked/CACHEDIR.TAG": CACHE_TAG, "marked/x": "", "not/CACHEDIR.TAG": "no signature", ".DS_Store": ""},
        {"a.py", "not/CACHEDIR.TAG"},
        dict.fromkeys(("a.pyc", "__pycache__", "p/.mypy_cache", "node_modules", "marked", ".DS_Store"), files.CACHE)
        | {".hg": files.HISTORY},
    ),
    "git decides, at each depth": Case(
        {".gitignore": "data\n*.ckpt\n!keep.ckpt\n", "a.py": "", "new.py": "", "data/x": "", "keep.ckpt": ""}
        | {
            "sub/.gitignore": "own\n!b.ckpt\n",
            "sub/own": "",
            "sub/b.ckpt": "",
            "sub/c.ckpt": "",
            "out/logs/x.ckpt": "",
        },
        {".gitignore", "a.py", "new.py", "keep.ckpt", "sub/.gitignore", "sub/b.ckpt"},
        dict.fromkeys(("data", "sub/own", "sub/c.ckpt", "out"), files.IGNORED),
        tracked=("a.py", ".gitignore"),
    ),
    "tracked files are sent whatever they are": Case(
        {".gitignore": "build\n", "build/t.py": "", "build/u.py": "", ".env": "A=1", "node_modules/t": "", "k.pem": KEY}
        | {"node_modules/u": "", **venv("env"), ".env.local": "A=1", "u.pem": KEY},
        {".gitignore", "build/t.py", ".env", "node_modules/t", "k.pem", "env/bin/python"},
        {"build/u.py": files.IGNORED, "node_modules/u": files.CACHE,
         ".env.local": "looks like a secret: environment file"}
        | {"env/pyvenv.cfg": files.ENVIRONMENT, "env/lib": files.ENVIRONMENT,
         "u.pem": "looks like a secret: private key"},
        tracked=("build/t.py", ".env", "node_modules/t", "k.pem", "env/bin/python", ".gitignore"),
    ),
    "untracked environments and caches of a checkout": Case(
        {"a.py": "", **venv("env"), "__pycache__/a.pyc": "", "c/CACHEDIR.TAG": CACHE_TAG, "c/x": ""},
        {"a.py"},
        {"env": files.ENVIRONMENT, "__pycache__": files.CACHE, "c": files.CACHE},
        tracked=("a.py",),
    ),
    "links within stay links": Case(
        {"d/f": "", "to-file": "-> d/f", "to-dir": "-> d", "d/up": "-> ..", "self": "-> .", "a": "-> b", "b": "-> a"}
        | {"absolute": "-> ROOT/d/f", "d/deep/absolute": "-> ROOT/d", "dangling": "-> nowhere", "./dot": "-> ./d/./f"}
        | {"by-name": "-> ../root/d", "through": "-> to-dir/f"},
        {"d/f", "to-file -> d/f", "to-dir -> d", "d/up -> ..", "self -> .", "a -> b", "b -> a", "absolute -> d/f"}
        | {"d/deep/absolute -> ..", "dangling -> nowhere", "dot -> d/f", "by-name -> d", "through -> to-dir/f"},
        {},
    ),
    "links that lead nowhere": Case(
        {"gone": "-> /nowhere/x", "above": "-> ../nowhere", "home": "-> ../../home", "all": "-> /"},
        set(),
        {"gone": "a link to /nowhere/x, which is not there", "above": "a link to ../nowhere, which is not there"}
        | {"home": "a link to HOME, which has more than this program",
         "all": "a link to /, which has more than this program"},
    ),
    "links to what has the tree itself": Case(
        {"a": "", "up": "-> ..", "d/up": "-> ../.."},
        {"a"},
        dict.fromkeys(("up", "d/up"), "a link to ABOVE, which has more than this program"),
    ),
    "links that leave are followed once": Case(
        {
            "../out/f": "",
            "../out/in/g": "",
            "../out/loop": "-> .",
            "../out/in/up": "-> ../f",
            "../out/on": "-> ../other",
        }
        | {
            "../other/h": "",
            "../out/.env": "A=1",
            "data": "-> ../out",
            "d/one": "-> ../../out/f",
            "secret": "-> ../out/.env",
        }
        | {f"../out/v/{name}": text for name, text in VENV.items()}
        | {"v": "-> ../out/v", "via": "-> data/f"},
        {"data/f", "data/in/g", "data/loop -> .", "data/in/up -> ../f", "d/one", "via -> data/f"},
        {"data/on": "a link to ../other, outside the target of another link", "v": files.ENVIRONMENT}
        | {"data/.env": "looks like a secret: environment file", "data/v": files.ENVIRONMENT}
        | {"secret": "looks like a secret: environment file"},
    ),
    "a tracked link to a secret elsewhere": Case(
        {"../out/id": KEY, "a": "-> ../out/id"}, set(), {"a": "looks like a secret: private key"}, tracked=("a",)
    ),
}  # fmt: skip


def test_files_of_a_tree_are_those_of_the_rules(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    problems = []
    for number, (title, case) in enumerate(CASES.items()):
        root = tmp_path / str(number) / "root"
        root.mkdir(parents=True)
        write(root, case.contents)
        if case.tracked is not None:
            run(root, "init", "-q")
            run(root, "add", "-f", *case.tracked)
        listing = list_files(root)
        expected = {
            name: why.replace("HOME", str(tmp_path / "home")).replace("ABOVE", str(root.parent))
            for name, why in case.left_out.items()
        }
        for found, wanted in zip((*shown(listing), listing.empty), (case.sent, expected, case.empty), strict=True):
            if found != wanted:
                problems.append(f"{title}: {found} is not {wanted}")
        assert listing.in_git == (case.tracked is not None)
    assert not problems, "\n".join(problems)


def names(root: Path, **given: object) -> set[str]:
    return set(list_files(root, **given).files)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_git", [False, True])
def test_what_cannot_be_read_is_named(tmp_path: Path, in_git: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_git:
        run(tmp_path, "init", "-q")
    write(tmp_path, {"a.py": "", "closed": "", "to-pipe": "-> pipe", "to-device": "-> /dev/zero"})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "closed").chmod(0)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("x.sock")
        monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "closed")
        sent, left_out = shown(list_files(tmp_path))
        assert sent == {"a.py", "to-pipe -> pipe"}
        assert left_out == {
            "closed": "cannot be read: Permission denied",
            "pipe": "a pipe",
            "to-device": "a device",
            "x.sock": "a socket",
        }
    if in_git:
        run(tmp_path, "add", "closed")
        with pytest.raises(InvalidArgument, match=r"closed cannot be read: Permission denied\. .*chmod"):
            list_files(tmp_path)


def test_empty_directories_are_listed_outside_of_git_alone(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "full/x": ""})
    (tmp_path / "logs" / "deep").mkdir(parents=True)
    assert list_files(tmp_path).empty == ("logs/deep",)
    run(tmp_path, "init", "-q")
    listing = list_files(tmp_path)
    assert (listing.empty, listing.left_out) == ((), ())


def test_submodules_nested_repositories_and_worktrees_have_their_own_rules(tmp_path: Path) -> None:
    library, root = tmp_path / "library", tmp_path / "root"
    for directory in (library, root):
        directory.mkdir()
        run(directory, "init", "-q", "-b", "main")
    write(library, {"lib.py": "", ".gitignore": "*.o\n", "lib.o": ""})
    run(library, "add", "-A")
    run(library, "commit", "-qm", "first")
    write(root, {"a.py": "", ".gitignore": "*.tmp\nignored\n"})
    run(root, "submodule", "add", "-q", str(library), "sub/library")
    run(root, "add", "-A")
    run(root, "commit", "-qm", "first")
    write(root, {"sub/library/new.o": "", "sub/library/new.tmp": "", "x.tmp": ""})
    for name in ("inner", "ignored", "deep/er/inner"):
        (root / name).mkdir(parents=True)
        run(root / name, "init", "-q")
        write(root / name, {"b.py": "", "c.tmp": "", "left": "", ".gitignore": "left\n"})
    own = {".gitignore", ".gitmodules", "a.py"}
    sub = {"sub/library/.gitignore", "sub/library/lib.py", "sub/library/new.tmp"}
    inner = {"inner/.gitignore", "inner/b.py", "inner/c.tmp"}
    assert names(root) == own | sub | inner | {f"deep/er/{name}" for name in inner}
    assert names(root / "deep") == {f"er/{name}" for name in inner}
    assert names(root, below=("deep", "sub/library/lib.py")) == {f"deep/er/{name}" for name in inner} | {
        "sub/library/lib.py"
    }
    assert names(root / "sub" / "library") == {".gitignore", "lib.py", "new.tmp"}
    assert "b.py" in names(root / "ignored")
    run(root, "worktree", "add", "-q", str(tmp_path / "tree"))
    write(tmp_path / "tree", {"own.py": "", "own.tmp": ""})
    assert names(tmp_path / "tree") == {*own, "own.py"}
    (root / ".git" / "info" / "exclude").write_text("own.py\n")
    assert "own.py" not in names(tmp_path / "tree")
    (root / "gone").mkdir()
    run(root, "rm", "-qr", "--cached", "sub/library")
    (root / "sub" / "library" / ".git").unlink()
    assert names(root, below=("sub",)) == {"sub/library/.gitignore", "sub/library/lib.py", *sub} - {
        "sub/library/new.tmp"
    }


def test_checkout_of_is_the_top_unless_the_directory_is_ignored(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, {".gitignore": "out\n", "out/deep/t.py": "", "out/deep/u.pyc": "", "src/t.py": "", "forced/.git/x": ""})
    assert checkout_of(root / "src") is None
    run(root, "init", "-q")
    assert [checkout_of(root / name) for name in ("", "src", "out", "out/deep")] == [root, root, None, None]
    assert checkout_of(root / "forced") == root
    assert checkout_of(tmp_path) is None
    listing = list_files(root / "out" / "deep")
    assert (set(listing.files), listing.in_git) == ({"t.py"}, False)
    write(root, {"out/forced": ""})
    run(root, "add", "-f", "out/forced")
    assert names(root / "out") == {"forced"}
    (root / "src" / ".git").write_text("gitdir: /nowhere\n")
    with pytest.raises(InvalidArgument, match=r"git does not list the files of .*/src.* names no repository"):
        list_files(root / "src")
    assert "src/t.py" in names(root)


def test_settings_of_the_user_count(tmp_path: Path) -> None:
    root, home = tmp_path / "root", tmp_path / "home"
    write(
        home, {".gitconfig": "[core]\n\texcludesFile = ~/ignored\n", "ignored": "*.mine\n", ".config/git/ignore": "*"}
    )
    write(root, {"a.py": "", "b.mine": ""})
    run(root, "init", "-q")
    assert names(root) == {"a.py"}


def test_checkout_without_git_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidArgument, match="git is not installed here to say which files it ignores"):
        list_files(tmp_path)


def test_included_paths_are_sent_whatever_the_rules_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    write(root, {"a.py": "", ".gitignore": "data\nlinked\nstore\n", "data/x": "", "data/y/z.pyc": "", ".env": "A=1"})
    write(root, {"k.pem": KEY, "data/other/.env": "B=1", "../out/.env": "C=1", "ext": "-> ../out"})
    write(
        root,
        {
            "linked": "-> store", "store/s": "", "inner/x": "", **venv("env"), "data/clone/.git/x": "",
            "data/clone/f": "",
        },
    )  # fmt: skip
    run(root, "init", "-q")
    usual = {"a.py", ".gitignore", "inner/x"}
    monkeypatch.chdir(root / "inner")
    rows: tuple[tuple[tuple[str, ...], set[str]], ...] = (
        ((), set()),
        (("../.env",), {".env"}),
        (("../data/x",), {"data/x"}),
        (("../data",), {"data/x", "data/y/z.pyc", "data/other/.env", "data/clone/f"}),
        (("../data/y", str(root / "k.pem")), {"data/y/z.pyc", "k.pem"}),
        (("../ext/.env",), {"ext/.env"}),
        (("../ext",), {"ext/.env"}),
        (("../linked",), {"linked", "store/s"}),
        (("../env",), {f"env/{name}" for name in VENV}),
    )
    problems = [
        f"{given}: {found ^ (usual | more)}"
        for given, more in rows
        if (found := names(root, include=[Path(name) for name in given])) != usual | more
    ]
    assert not problems, "\n".join(problems)
    listing = list_files(root, include=[Path("../.env"), Path("../data/x")])
    assert {entry.name for entry in listing.left_out} >= {"k.pem", "env", "ext/.env"}
    assert ".env" not in {entry.name for entry in listing.left_out}
    for path, text in (("../../out", "is not in"), ("missing", "does not exist")):
        with pytest.raises(InvalidArgument, match=text):
            list_files(root, include=[Path(path)])


def test_only_what_is_below_is_listed_and_links_to_the_rest_are_followed(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/t.py": "", "other/o.py": "", "setup.py": "", "pkg/o": "-> ../other", "pkg/s": "-> t.py"})
    listing = list_files(tmp_path, below=("pkg", "setup.py", "pkg/t.py"))
    assert shown(listing)[0] == {"pkg/t.py", "setup.py", "pkg/o/o.py", "pkg/s -> t.py"}
    assert listing.followed == ()
    write(tmp_path, {"key.pem": KEY})
    with pytest.raises(InvalidArgument, match=r"key\.pem is not sent, and the program needs it: looks like a secret"):
        list_files(tmp_path, below=("key.pem",))
    assert names(tmp_path, below=("key.pem",), include=[tmp_path / "key.pem"]) == {"key.pem"}
    for name in ("../x", "missing", "/etc"):
        with pytest.raises(InvalidArgument, match="is not in"):
            list_files(tmp_path, below=(name,))


def test_too_many_or_too_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"src/p/a.py": "1", "src/p/data/1": "1" * 700, "src/p/data/2": "1" * 200, "src/p/m.pt": "1" * 300})
    with pytest.raises(
        InvalidArgument, match=r"has 1\.2 kB .* at most 1\.0 kB\. The largest: src/p/data/ \(900 B\), src/p/m"
    ):
        list_files(tmp_path, most_bytes=1000)
    with pytest.raises(
        InvalidArgument, match=r"more than 2 files, .* src/p/data/ \(2 files\).*--package-path FILE\.py"
    ):
        list_files(tmp_path, most_files=2)
    run(tmp_path, "init", "-q")
    with pytest.raises(InvalidArgument, match=r"\.gitignore"):
        list_files(tmp_path, most_files=2)


def test_nothing_that_a_repository_configures_changes_what_is_listed(tmp_path: Path) -> None:
    victim, root, mark = tmp_path / "victim", tmp_path / "root", tmp_path / "was-run"
    write(victim, {".env": "S=1", "secret.py": "", ".gitignore": "b.py\n"})
    run(victim, "init", "-q")
    run(victim, "add", "-A")
    write(root, {"a.py": "", "b.py": "", ".gitignore": "*.tmp\n", "c.tmp": "", "link": f"-> {victim}", ".env": "A=1"})
    run(root, "init", "-q")
    run(root, "add", "a.py", ".gitignore")
    blob = run(root, "hash-object", "-w", "a.py").strip()
    program = tmp_path / "evil.sh"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {mark}\ncat\n')
    program.chmod(0o755)
    write(root, {".gitattributes": "* filter=evil diff=evil\n", ".gitmodules": '[submodule "x"]\npath = ../victim\n'})
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (root / ".git" / "hooks" / hook).write_bytes(program.read_bytes())
        (root / ".git" / "hooks" / hook).chmod(0o755)
    write(tmp_path, {"excludes": "*.py\n", "more": f"[core]\n\tfsmonitor = {program}\n\tworktree = {victim}\n"})
    settings = {"core.excludesFile": str(tmp_path / "excludes"), "core.fsmonitor": str(program)}
    settings |= {"filter.evil.process": str(program), "diff.external": str(program), "core.pager": str(program)}
    settings |= {"alias.ls-files": f"!{program}", "include.path": str(tmp_path / "more"), "core.bare": "true"}
    settings |= {"core.worktree": str(victim), "extensions.worktreeConfig": "true", "core.ignoreCase": "evil\n[x]"}
    for name in ("xx/.env", "link/.env"):
        run(root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    index = (root / ".git" / "index").read_bytes()[:-20].replace(b"xx/.env", b"../.env")
    (root / ".git" / "index").write_bytes(index + hashlib.sha1(index).digest())
    write(root, {".git/objects/info/alternates": f"{victim}/.git/objects\n", "sub/.git": f"gitdir: {victim}/.git\n"})
    write(root, {"sub/b.py": "", "sub/c.py": "", "sub/.env": "A=1"})
    for name, value in settings.items():
        run(root, "config", "--file", ".git/config", name, value)
    mark.unlink(missing_ok=True)
    listing = list_files(root)
    own = {"a.py", "b.py", ".gitignore", ".gitattributes", ".gitmodules"}
    assert set(listing.files) == own | {"link/secret.py", "link/.gitignore", "sub/b.py", "sub/c.py", "sub/.env"}
    assert listing.followed == ("link",)
    assert not mark.exists(), mark.read_text()


def test_index_that_is_no_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": ""})
    run(tmp_path, "init", "-q")
    os.mkfifo(tmp_path / ".git" / "index")
    with pytest.raises(InvalidArgument, match="index cannot be read"):
        list_files(tmp_path)


def test_repository_of_another_user_above_a_directory_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"mine/.env": "A=1", ".gitignore": "*\n"})
    run(tmp_path, "init", "-q")
    run(tmp_path, "add", "-f", "mine/.env")
    assert names(tmp_path / "mine") == {".env"}
    if os.geteuid():
        pytest.skip("only root gives a file to another user")
    os.chown(tmp_path / ".git", 12345, 12345)
    assert names(tmp_path / "mine") == set()
