"""Archives that are made while they are sent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard_protocol.errors import Unavailable
from trainyard_server.storage.job_files.archive import zip_blocks
from trainyard_server.storage.job_files.local import LocalTree
from trainyard_server.storage.job_files.tree import Content


def blocks(directory: Path) -> Iterator[bytes]:
    tree = LocalTree(str(directory), [directory])
    return zip_blocks(tree, (), sorted(tree.walk(()), key=lambda item: item[0]))


def test_storage_that_fails_ends_the_archive_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    read = blocks(tmp_path)

    def failing(*_: object) -> Content:
        raise Unavailable("Google Cloud Storage does not answer.")

    monkeypatch.setattr(LocalTree, "content", failing)
    with pytest.raises(OSError, match="does not answer"):
        list(read)


def test_walk_follows_no_link_and_skips_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "loop").symlink_to(tmp_path)
    (tmp_path / "in" / "deep" / "file").write_text("x")
    (tmp_path / "out").symlink_to("/etc")
    walked = {}
    for path, entry in LocalTree(str(tmp_path), [tmp_path]).walk(()):
        walked["/".join(path)] = (entry.kind, entry.is_link)
        if path == ("in", "deep"):
            (tmp_path / "in" / "deep").rename(tmp_path / "in" / "moved")
    assert walked["in/loop"] == ("directory", True)
    assert walked["out"] == ("other", False)
    assert "in/deep/file" not in walked
