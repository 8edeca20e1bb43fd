"""Synchronisation of a directory with the real receiver, which runs here as a process."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from beds.waiting import until
from trainyard_cli.capabilities.attachments.dev import receiver, tree
from trainyard_cli.capabilities.attachments.dev.synchroniser import Synchroniser, SyncResult
from trainyard_cli.capabilities.attachments.dev.tree import CodeDirectory
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Unavailable


class LocalPipe:
    """The receiver of a directory, without a replica around it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", receiver.__file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def send(self, data: bytes) -> None:
        self._input.write(data)
        self._input.flush()

    def read_line(self, most_bytes: int) -> bytes:
        line = self._output.readline(most_bytes)
        if not line:
            raise Unavailable("It has ended.")
        return line

    def close(self) -> None:
        self._process.communicate(timeout=60)


def is_file(path: Path) -> bool:
    return path.is_symlink() or not path.is_dir()


class Bench:
    """A directory of this machine, and a replica."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.here = root / "here"
        self.there = root / "replica" / "code"
        self.here.mkdir()

    def open(self, *, root: str = "laptop:/here", replaces: bool = False) -> Synchroniser:
        directory = CodeDirectory.of(self.here)
        pipe = LocalPipe(self.root / "replica")
        try:
            return Synchroniser(pipe, directory, root, replaces=replaces)
        except FailedPrecondition:
            pipe.close()
            raise

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def once(self) -> SyncResult:
        with closing(self.open()) as synchroniser:
            result = synchroniser.synchronise()
            assert result is not None
            return result

    def names(self) -> set[str]:
        return {str(path.relative_to(self.there)) for path in self.there.rglob("*") if is_file(path)}

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-C", str(self.here), *words], check=True, capture_output=True)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def opened(bench: Bench) -> Iterator[Synchroniser]:
    with closing(bench.open()) as synchroniser:
        yield synchroniser


def test_changed_new_and_renamed_files_are_sent_and_gone_ones_removed(bench: Bench, opened: Synchroniser) -> None:
    bench.write({"same": "1", "changed": "1", "old/name": "renamed", "gone/deep/file": "1"})
    (bench.here / "changed").chmod(0o755)
    opened.synchronise()
    assert bench.names() == {"same", "changed", "old/name", "gone/deep/file"}
    assert (bench.there / "changed").stat().st_mode & 0o777 == 0o755
    assert opened.synchronise() is None
    bench.write({"changed": "22", "new": ""})
    (bench.here / "new").chmod(0o600)
    (bench.here / "old" / "name").rename(bench.here / "other")
    (bench.here / "gone" / "deep" / "file").unlink()
    result = opened.synchronise()
    assert result is not None
    assert set(result.sent) == {"changed", "new", "other"}
    assert bench.names() == {"same", "changed", "new", "other"}
    assert (bench.there / "changed").read_text() == "22"
    assert not (bench.there / "gone").exists()


def test_files_that_the_replica_has_written_stay(bench: Bench) -> None:
    bench.write({"folder/code": "1", "kept": "1", "clash": "1"})
    bench.once()
    (bench.there / "folder" / "checkpoint").write_text("weights")
    (bench.there / "kept").write_text("edited there")
    (bench.there / "blocked").mkdir()
    (bench.here / "folder" / "code").unlink()
    bench.write({"blocked": "a directory of the replica is in its place"})
    result = bench.once()
    assert bench.names() == {"folder/checkpoint", "kept", "clash"}
    assert (bench.there / "kept").read_text() == "edited there"
    assert result.notices == ("blocked was not written: Is a directory.",)
    bench.write({"kept": "2"})
    (bench.there / "clash").unlink()
    assert set(bench.once().sent) == {"kept", "clash", "blocked"}


def test_directory_replaces_a_file_and_a_file_a_directory(bench: Bench, opened: Synchroniser) -> None:
    bench.write({"a": "1", "b/c": "1"})
    opened.synchronise()
    (bench.here / "a").unlink()
    (bench.here / "b" / "c").unlink()
    (bench.here / "b").rmdir()
    bench.write({"a/x": "2", "b": "2"})
    opened.synchronise()
    assert bench.names() == {"a/x", "b"}


@pytest.mark.parametrize("repository", [False, True])
def test_links_within_are_links_and_links_that_lead_out_are_followed_once(bench: Bench, repository: bool) -> None:
    if repository:
        bench.git("init", "-q")
    bench.write({"folder/file": "1", "../elsewhere/data": "3", "../elsewhere/.env": "KEY=1"})
    (bench.here / "inside").symlink_to("folder/file")
    (bench.here / "tree").symlink_to("folder")
    (bench.here / "folder" / "up").symlink_to("../../elsewhere/data")
    (bench.here / "linked").symlink_to("../elsewhere")
    (bench.here / "absolute").symlink_to(bench.here / "folder" / "file")
    (bench.here / "outside").symlink_to(bench.root)
    os.mkfifo(bench.here / "pipe")
    result = bench.once()
    assert bench.names() == {"folder/file", "folder/up", "inside", "tree", "absolute", "linked/data"}
    assert (bench.there / "folder" / "up").read_text() == "3"
    assert not (bench.there / "linked").is_symlink()
    assert (bench.there / "inside").readlink() == Path("folder/file")
    assert result.notices == (
        "linked/.env is not synchronised: looks like a secret: environment file.",
        f"outside is not synchronised: a link to {bench.root}, which has more than this program.",
        "pipe is not synchronised: a pipe.",
        f"folder/up is a link to outside {bench.here}; its target is synchronised.",
        f"linked is a link to outside {bench.here}; its target is synchronised.",
    )
    (bench.here / "tree").unlink()
    bench.write({"tree/file": "2"})
    bench.once()
    assert ((bench.there / "folder/file").read_text(), (bench.there / "tree/file").read_text()) == ("1", "2")


def test_gitignore_counts_also_below_the_top_and_of_repositories_within(bench: Bench) -> None:
    bench.git("init", "-q")
    bench.write({".gitignore": "data\n*.ckpt\n", "train.py": "", "data/set": "", "sub/a.ckpt": "", "sub/b.py": ""})
    bench.write({"tracked": "", "inner/own": "", "inner/left": ""})
    bench.git("add", "tracked", "train.py")
    (bench.here / "tracked").unlink()
    subprocess.run(["git", "init", "-q", str(bench.here / "inner")], check=True)
    (bench.here / "inner" / ".gitignore").write_text("left\n")
    bench.once()
    assert bench.names() == {".gitignore", "train.py", "sub/b.py", "inner/.gitignore", "inner/own"}


def test_broken_repository_is_refused_rather_than_sent_with_what_it_ignores(bench: Bench) -> None:
    bench.write({".git": "gitdir: /nowhere", ".env": "SECRET"})
    with closing(bench.open()) as synchroniser, pytest.raises(InvalidArgument, match="git does not list the files"):
        synchroniser.synchronise()


def test_directory_that_is_gone_removes_nothing(bench: Bench, opened: Synchroniser) -> None:
    bench.write({"file": "1"})
    opened.synchronise()
    bench.here.rename(bench.root / "moved")
    with pytest.raises(InvalidArgument, match="no longer exists"):
        opened.synchronise()
    (bench.root / "moved").rename(bench.here)
    assert opened.synchronise() is None
    assert bench.names() == {"file"}


def test_file_that_cannot_be_sent_is_named_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard_cli.capabilities.attachments.dev.synchroniser.POLL_S", 0.01)
    monkeypatch.setattr(tree, "MAX_FILE_BYTES", 3)
    bench.write({"file": "1"})
    ended, notices = threading.Event(), list[str]()
    with closing(bench.open()) as synchroniser:
        thread = threading.Thread(target=synchroniser.keep, args=(ended, notices.append))
        thread.start()
        until(lambda: bench.names() == {"file"}, "the first file")
        bench.write({"large": "1234"})
        until(lambda: notices, "the notice")
        (bench.here / "large").unlink()
        bench.write({"later": "1"})
        until(lambda: bench.names() == {"file", "later"}, "the other file")
        ended.set()
        thread.join()
    assert len(notices) == 1
    assert notices[0].startswith("large has more than 3 B")


def test_too_much_is_refused_in_a_sentence(bench: Bench, opened: Synchroniser, monkeypatch: pytest.MonkeyPatch) -> None:
    with (bench.here / "weights").open("wb") as file:
        file.truncate(tree.MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidArgument, match=r"weights has more than 100 MB, .*\.gitignore"):
        opened.synchronise()
    (bench.here / "weights").unlink()
    monkeypatch.setattr(tree, "MAX_TREE_BYTES", 3)
    bench.write({"a": "11", "b": "11"})
    with pytest.raises(InvalidArgument, match=r"4 B of files, .* at most 3 B"):
        opened.synchronise()
    monkeypatch.setattr(tree, "MAX_FILES", 1)
    bench.write({"a": "", "b": ""})
    with pytest.raises(InvalidArgument, match="has more than 1 files"):
        opened.synchronise()


@pytest.mark.parametrize("place", [Path("/"), Path.home()])
def test_home_and_root_are_refused(place: Path) -> None:
    with pytest.raises(InvalidArgument, match="Name the directory of the program"):
        CodeDirectory.of(place)


def test_other_directory_replaces_the_code_only_if_it_is_named(bench: Bench) -> None:
    bench.write({"file": "1"})
    bench.once()
    with pytest.raises(FailedPrecondition, match="comes from laptop:/here"):
        bench.open(root="laptop:/other")
    with closing(bench.open(root="laptop:/other", replaces=True)) as synchroniser:
        (bench.here / "file").unlink()
        synchroniser.synchronise()
    assert bench.names() == set()


def test_replica_gets_no_file_that_is_not_in_the_directory(bench: Bench) -> None:
    (bench.root / "secret").write_text("of this machine")
    sent: list[bytes] = []

    class Curious:
        answers = iter([b'{"begins": ["/code", ""]}\n', b'{"wanted": ["../secret", "/etc/passwd"]}\n'])

        def send(self, data: bytes) -> None:
            sent.append(data)

        def read_line(self, most_bytes: int) -> bytes:
            return next(self.answers, b'no JSON \x1b[31m{"problems": 1}\n')

        def close(self) -> None:
            pass

    synchroniser = Synchroniser(Curious(), CodeDirectory.of(bench.here), "here", replaces=False)
    with pytest.raises(Unavailable, match=r"answers with something else: no JSON \\x1b"):
        synchroniser.synchronise()
    assert not any(b"of this machine" in data for data in sent)
    assert sent[-1] == b'{"end": true}\n'
