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
    b'"\\U00110000": 1',
    b'a: "\\UFFFFFFFF"',
    b"a: 0x_",
    b"a: 2026-13-45",
    b'a: !!int ""',
    b"a: !!timestamp x",
    b"a: !!bool x",
    b"a: " + b"9" * 5000,
)
UNREADABLE = {
    b"a: 1\nb: [": ":2: is not YAML",
    b"\xff\xfea: 1": "is not UTF-8 text",
    b"a: \0": "is not YAML",
    b"[" * 5000: "is nested too deeply",
    **dict.fromkeys(NONE_OF_PYTHON, "has a number, a time or an escape that is none"),
}
UNUSABLE = (
    b"1",
    b"[1]",
    b'"": 1',
    b'"\\u200b": {"": 1}',
    b"a: &a {b: *a}",
    b"? [a]\n: 1",
    b"1: 2",
    b"images: []",
)


@pytest.mark.parametrize("read", READERS)
def test_file_that_is_no_yaml_is_refused_with_its_name(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "site.yaml"
    for content, message in UNREADABLE.items():
        path.write_bytes(content)
        with pytest.raises(InvalidArgument) as refused:
            read(path)
        assert refused.value.message.startswith(str(path)), content[:40]
        assert message in refused.value.message, content[:40]


@pytest.mark.parametrize("load", READERS[1:])
def test_file_with_anything_else_in_it_is_refused_with_its_name(
    tmp_path: Path, load: Callable[[Path], object]
) -> None:
    path = tmp_path / "site.yaml"
    for content in UNUSABLE:
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match=f"^{path}"):
            load(path)
