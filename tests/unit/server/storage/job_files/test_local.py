"""Job-dirs on the local file system: sorted pages, and no way out of the job-dir."""

import os
import socket
from pathlib import Path

import pytest

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from trainyard_server.storage.job_files.local import LocalTree
from trainyard_server.storage.job_files.tree import PAGE_SIZE, names


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("of the server")
    made = tmp_path / "jobs" / "mine"
    (made / "model").mkdir(parents=True)
    (made / "model" / "weights").write_bytes(b"w" * 3_000_000)
    (made / "notes.txt").write_text("hello")
    return made


def tree(job_dir: Path) -> LocalTree:
    return LocalTree(str(job_dir), [job_dir.parent])


def test_large_directory_is_paged_without_duplicates(job_dir: Path) -> None:
    for number in range(PAGE_SIZE + 50):
        (job_dir / "model" / f"{number:04}").touch()
    for number in range(PAGE_SIZE):
        (job_dir / "model" / f"{number:04}-d").mkdir()
    seen: list[str] = []
    after, pages = "", 0
    while True:
        page = tree(job_dir).page(("model",), after)
        assert len(page.entries) <= PAGE_SIZE
        seen += [entry.name for entry in page.entries]
        after, pages = page.more, pages + 1
        if not after:
            break
    assert pages == 3
    assert sorted(seen) == sorted(path.name for path in (job_dir / "model").iterdir())


@pytest.mark.parametrize("path", ["..", "../secret", "model/../../secret", "/etc", "a//b", "a/", ".", "a\0b", "a/./b"])
def test_ambiguous_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match="below the job-dir"):
        names(path)


def test_link_is_followed_inside_the_job_dir_only(job_dir: Path) -> None:
    (job_dir / "latest").symlink_to("model")
    (job_dir / "out").symlink_to("../../secret")
    (job_dir / "away").symlink_to("/")
    (job_dir / "broken").symlink_to("none")
    (job_dir / "loop").symlink_to("loop")
    files = tree(job_dir)
    kinds = {entry.name: (entry.kind, entry.size) for entry in files.page((), "").entries}
    assert kinds["latest"] == ("directory", None)
    for name in ("out", "away", "broken", "loop"):
        assert kinds[name] == ("other", None)
    assert b"".join(files.content(("latest", "weights")).blocks)[:1] == b"w"
    with pytest.raises(PermissionDenied, match="out is a link to outside the job-dir"):
        files.content(("out",))
    for path in (("away",), ("away", "etc")):
        with pytest.raises(PermissionDenied):
            files.page(path, "")
    for name in ("broken", "loop"):
        with pytest.raises((NotFound, FailedPrecondition)):
            files.content((name,))


def test_link_created_between_resolving_and_opening_is_not_followed(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that swaps a file, or a directory on the way, for a link at the worst moment gets nothing."""
    real = LocalTree._resolved
    (job_dir / "model" / "secret").write_text("mine")

    def swapped(self: LocalTree, path: tuple[str, ...]) -> Path:
        target = real(self, path)
        victim = job_dir / path[0]
        victim.rename(job_dir / "moved")
        victim.symlink_to(job_dir.parent.parent / ("secret" if len(path) == 1 else "."))
        return target

    monkeypatch.setattr(LocalTree, "_resolved", swapped)
    with pytest.raises(FailedPrecondition, match=r"notes.txt is neither a file nor a directory"):
        tree(job_dir).content(("notes.txt",))
    (job_dir / "moved").unlink()
    with pytest.raises(FailedPrecondition, match=r"model/secret cannot be read by the server: Not a directory"):
        tree(job_dir).content(("model", "secret"))


def test_special_files_are_never_opened(job_dir: Path) -> None:
    os.mkfifo(job_dir / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(job_dir / "socket"))
        kinds = {entry.name: entry.kind for entry in tree(job_dir).page((), "").entries}
        for name in ("pipe", "socket"):
            assert kinds[name] == "other"
            with pytest.raises(FailedPrecondition, match="neither a file nor a directory"):
                tree(job_dir).content((name,))
    with pytest.raises(FailedPrecondition, match="model is a directory"):
        tree(job_dir).content(("model",))
    with pytest.raises(FailedPrecondition, match=r"notes.txt is not a directory"):
        tree(job_dir).page(("notes.txt",), "")
    with pytest.raises(NotFound, match="There is no none in the job-dir"):
        tree(job_dir).page(("none",), "")


def test_job_dir_must_be_below_an_allowed_directory(job_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="is below no directory that this server may show"):
        LocalTree(str(job_dir), [tmp_path / "other"])
    with pytest.raises(FailedPrecondition, match="is below no directory"):
        LocalTree(str(job_dir), [])
    (tmp_path / "jobs" / "link").symlink_to(tmp_path)
    with pytest.raises(FailedPrecondition, match="is below no directory"):
        LocalTree(str(tmp_path / "jobs" / "link"), [tmp_path / "jobs"])
    with pytest.raises(FailedPrecondition, match=r"There is no .*/none on the server's machine"):
        LocalTree(str(tmp_path / "jobs" / "none"), [tmp_path])
    with pytest.raises(FailedPrecondition, match="neither a gs:// address nor an absolute path"):
        LocalTree("relative", [tmp_path])
    assert LocalTree(str(job_dir), [Path("/")]).page((), "").entries
