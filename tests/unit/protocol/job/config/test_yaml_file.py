"""The YAML files of an operator: whatever is in one, the refusal names the file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.yaml_file import read_yaml_file
from trainyard_protocol.job.machines import load_catalog
from trainyard_protocol.job.runtimes import load_runtimes
from trainyard_server.config.quota_file import load_quotas

READERS: tuple[Callable[[Path], object], ...] = (read_yaml_file, load_catalog, load_runtimes, load_quotas)
NONE_OF_PYTHON = (
    b'"\\U00110000": 1', b'a: "\\UFFFFFFFF"', b"a: 0x_", b"a: 2026-13-45", b'a: !!int ""', b"a: !!timestamp x",
    b"a: !!bool x", b"a: " + b"9" * 5000,
)  # fmt: skip
UNREADABLE: dict[bytes | None, str] = {
    None: "cannot be read: No such file",
    b"a: 1\nb: [": ":2: is not YAML",
    b"\xff\xfea: 12": "begins as UTF-16-LE text, and is not",
    b"a: \0": "is not YAML",
    b"[" * 1000: "is nested too deeply",
    **dict.fromkeys(NONE_OF_PYTHON, "has a number, a time or an escape that is none"),
}
UNUSABLE = (b"1", b"[1]", b'"": 1', b'"\\u200b": {"": 1}', b"a: &a {b: *a}", b"? [a]\n: 1", b"1: 2", b"images: []")


def test_file_that_is_no_yaml_or_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    wrong = []
    for content, says in UNREADABLE.items():
        if content is not None:
            path.write_bytes(content)
        for read in READERS:
            with pytest.raises(InvalidArgument) as refused:
                read(path)
            message = refused.value.message
            if not message.startswith(str(path)) or says not in message:
                wrong.append((content, message))
    assert wrong == []


def test_file_with_anything_else_in_it_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    for content in UNUSABLE:
        path.write_bytes(content)
        for load in READERS[1:]:
            with pytest.raises(InvalidArgument, match=f"^{path}"):
                load(path)
