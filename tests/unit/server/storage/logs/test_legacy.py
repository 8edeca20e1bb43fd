"""Logs of the version before: a file of JSON lines for each stream and an index of 20-byte records."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard_protocol.wire.logs import LogEnd, digest
from trainyard_server.storage.files import locked
from trainyard_server.storage.logs.records import DAMAGED
from trainyard_server.storage.logs.store import SERVICE, LogStore, Stream
from unit.server.storage.logs.test_store import MASTER, WORKER, everything, lines, shown

JOB = Path("p") / "j"
ORDER = (SERVICE, MASTER, MASTER, WORKER, MASTER, SERVICE, WORKER, WORKER, MASTER)
KINDS = {SERVICE: 0, MASTER: 1, WORKER: 2}  # service, master, worker, ps, evaluator


def filename(stream: Stream) -> str:
    return f"{stream.run}.{stream.task}.jsonl"


def old_log(directory: Path, checks: bool = True) -> list[tuple[int, str, int, str]]:
    """Write the bytes of an old log; returns what its readers got. `checks`: as the later of the two versions did."""
    (directory / JOB).mkdir(parents=True)
    files = dict.fromkeys(KINDS, b"")
    counts = dict.fromkeys(KINDS, 0)
    index, seen = b"", []
    for cursor, stream in enumerate(ORDER, 1):
        number, text = counts[stream], f"{stream.task} ü {counts[stream]}"
        line: dict[str, object] = {"n": number, "c": cursor} if checks else {"n": number}
        line |= {"time": f"2026-11-20T12:00:{cursor:02}Z", "stream": "stdout", "text": text}
        raw = json.dumps(line | ({"partial": True} if cursor == 3 else {})).encode() + b"\n"
        run, kind, offset = stream.run, KINDS[stream], len(files[stream])
        check = (31 * run + 37 * kind + 43 * offset + 47 * len(raw)) % 251 + 1 if checks else 0
        index += struct.pack("<IBBHQI", run, kind, check, 0, offset, len(raw))
        files[stream] += raw
        counts[stream] += 1
        seen.append((cursor, stream.task, number, text))
    for stream, data in files.items():
        (directory / JOB / filename(stream)).write_bytes(data)
    (directory / JOB / "index").write_bytes(index)
    (directory / JOB / "lock").write_bytes(b" " * 64)
    return seen


@pytest.mark.parametrize("checks", [True, False])
def test_old_log_is_converted_when_it_is_opened_and_goes_on(tmp_path: Path, checks: bool) -> None:
    before = old_log(tmp_path, checks)
    store = LogStore(tmp_path)
    assert shown(store) == before
    assert [entry.cursor for entry in everything(store) if entry.partial] == [3]
    assert everything(store)[4].time == "2026-11-20T12:00:05Z"
    sent = lines(*[text for _, task, _, text in before if task == MASTER.task], "new")
    assert store.append("p", "j", MASTER, 0, sent) == (5, 1, False, ())
    assert store.verify("p", "j", MASTER, LogEnd(count=5, sha256=digest(sent)))
    assert shown(LogStore(tmp_path)) == [*before, (10, MASTER.task, 4, "new")]
    assert sorted(path.name for path in (tmp_path / JOB).iterdir()) == ["lock", "segment", "segment.index"]


@pytest.mark.parametrize(
    "break_it",
    [
        Path.unlink,
        lambda path: os.truncate(path, 50),
        lambda path: path.write_bytes(
            path.read_bytes().replace(b"\x01\x00\x00\x00\x02", b"\x09\x00\x00\x00\x02", 1)
        ),
    ],
)
def test_old_log_with_a_damaged_index_keeps_the_cursors_that_its_lines_know(
    tmp_path: Path, break_it: Callable[[Path], None]
) -> None:
    before = old_log(tmp_path)
    break_it(tmp_path / JOB / "index")
    assert shown(LogStore(tmp_path)) == before


def test_old_line_that_is_damaged_says_so(tmp_path: Path) -> None:
    before = old_log(tmp_path)
    path = tmp_path / JOB / filename(WORKER)
    path.write_bytes(path.read_bytes().replace(b'"n": 1', b'"n\0: 1'))
    assert shown(LogStore(tmp_path)) == [
        (*entry[:3], DAMAGED) if entry[1:3] == (WORKER.task, 1) else entry for entry in before
    ]


def test_old_lines_that_a_killed_writer_left_are_added(tmp_path: Path) -> None:
    before = old_log(tmp_path)
    with (tmp_path / JOB / filename(MASTER)).open("ab") as file:
        line = {"n": 4, "c": 10, "time": "2026-11-20T12:00:10Z", "stream": "stdout", "text": "whole"}
        file.write(json.dumps(line).encode() + b'\n{"n": 5, "c": 11, "ti')
    assert shown(LogStore(tmp_path)) == [*before, (10, MASTER.task, 4, "whole")]


@pytest.mark.parametrize("fail", ["write", "rename", "unlink"])
def test_conversion_that_is_cut_short_is_repeated_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    before = old_log(tmp_path / "logs")
    shutil.copytree(tmp_path / "logs", tmp_path / "copy")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if fail == "write":
        monkeypatch.setattr("trainyard_server.storage.logs.legacy.sync", full)
    else:
        monkeypatch.setattr(Path, fail, full)
    store = LogStore(tmp_path / "logs")
    if fail == "unlink":
        assert shown(store) == before
    else:
        with pytest.raises(OSError, match="No space"):
            shown(store)
        for path in (tmp_path / "copy" / JOB).iterdir():
            assert (tmp_path / "logs" / JOB / path.name).read_bytes() == path.read_bytes()
    monkeypatch.undo()
    assert shown(store) == before
    assert shown(LogStore(tmp_path / "logs")) == before


def test_old_log_that_is_locked_is_not_read_as_an_empty_one(tmp_path: Path) -> None:
    before = old_log(tmp_path)
    store = LogStore(tmp_path, read_wait_s=0.01)
    with locked(tmp_path / JOB, 1), pytest.raises(OSError, match="locked"):
        shown(store)
    assert shown(store) == before
