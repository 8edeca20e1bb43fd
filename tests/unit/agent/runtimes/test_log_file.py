"""A replica's log.jsonl, read while it grows and after the disk has changed it."""

from pathlib import Path

import pytest

from trainyard_agent.runtimes.log_file import DAMAGED, LogFile


def line(text: str) -> bytes:
    return f'{{"time": "2026-01-01T00:00:00Z", "stream": "stdout", "text": "{text}"}}\n'.encode()


def texts(log: LogFile, start: int = 0) -> list[str]:
    return [found.text for found in log.read(start, 100, 1 << 20)]


def test_line_that_is_not_finished_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line("one") + line("two")[:-5])
    assert texts(LogFile(path)) == ["one"]


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    assert texts(LogFile(tmp_path / "log")) == []


@pytest.mark.parametrize("damage", [b"\x00\x00\n", b"{}\n", b"\n", b"\xff\n"])
def test_damaged_line_keeps_its_number_and_hides_no_other(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(line("one") + damage + line("three"))
    log = LogFile(path)
    assert texts(log) == ["one", DAMAGED, "three"]
    assert texts(log, 1) == [DAMAGED, "three"]
    assert texts(log, 2) == ["three"]
    assert log.read(1, 1, 1 << 20) == log.read(0, 100, 1 << 20)[1:2]
