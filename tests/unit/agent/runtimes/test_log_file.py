"""A replica's log.jsonl, read while it grows and after the disk has changed it."""

from pathlib import Path

import pytest

from trainyard_agent.runtimes.log_file import DAMAGED, LogFile, RunLogs


def line(text: str) -> bytes:
    return f'{{"time": "2026-01-01T00:00:00Z", "stream": "stdout", "text": "{text}"}}\n'.encode()


def texts(log: LogFile, start: int = 0) -> list[str]:
    return [found.text for found in log.read(start, 100, 1 << 20)]


@pytest.mark.parametrize("damage", [b"\x00\x00\n", b"{}\n", b"\n", b"\xff\n"])
def test_damaged_line_keeps_its_number_and_hides_no_other(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(line("one") + damage + line("three"))
    log = LogFile(path)
    assert texts(log) == ["one", DAMAGED, "three"]
    assert texts(log, 1) == [DAMAGED, "three"]
    assert texts(log, 2) == ["three"]
    assert log.read(1, 1, 1 << 20) == log.read(0, 100, 1 << 20)[1:2]


def test_complete_log_says_how_many_lines_it_lacks(tmp_path: Path) -> None:
    whole, torn = line("one") + line("two") + line("three"), line("one") + line("two")[:-5]
    cases: list[tuple[bytes, str, int | None]] = [
        (whole, '{"lines": 3}', 0),
        (torn, '{"lines": 3}', 2),
        (torn, '{"supervisor": "killed"}', None),
        (torn, '{"supervisor": "killed", "lines": 1}', 0),
        (whole, "{}", 0),
        (whole, "", None),
    ]
    found = []
    for number, (content, done, _) in enumerate(cases):
        directory = tmp_path / "run" / f"task-{number}"
        directory.mkdir(parents=True)
        (directory / "log.jsonl").write_bytes(content)
        (directory / "done.json").write_text(done)
        log = RunLogs(tmp_path).read("run", directory.name, 0, 10, 1 << 20)
        found.append((content, done, log.missing))
        assert log.complete
    assert found == cases
