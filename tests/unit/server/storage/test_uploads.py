from pathlib import Path

import pytest

from trainyard_protocol.answers.files import Staged
from trainyard_protocol.errors import InvalidArgument
from trainyard_server.storage.uploads import UploadStore


def upload(staging: UploadStore, *parts: bytes, filename: str = "trainer-0.0.0.tar.gz") -> Staged:
    with staging.receive("p", filename) as one:
        for part in parts:
            one.write(part)
        return one.finish()


def test_upload_is_its_projects(tmp_path: Path) -> None:
    """The hash alone gives nobody the package of another project."""
    staging = UploadStore(tmp_path, limit=100)
    uri = upload(staging, b"abc").uri
    seen = {None: True, frozenset("pq"): True, frozenset("q"): False, frozenset[str](): False}
    assert {visible: staging.has(visible, uri) for visible in seen} == seen


def test_upload_that_is_empty_aborted_or_of_a_killed_server_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / ".upload-1234").write_bytes(b"x")
    staging = UploadStore(tmp_path, limit=5)
    with staging.receive("p", "a.whl") as one:
        one.write(b"1")
    with pytest.raises(InvalidArgument, match="is empty"):
        upload(staging)
    assert list(tmp_path.iterdir()) == []
