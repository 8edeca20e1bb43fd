"""Damage on the disk: a reader gets every line that can be read, a cursor keeps its meaning, and writers go on."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard_protocol.wire.logs import LogEnd, digest
from trainyard_server.storage.files import LockTimeout, locked
from trainyard_server.storage.logs.index import SIZE
from trainyard_server.storage.logs.records import DAMAGED, RecordReader, decode
from trainyard_server.storage.logs.store import SERVICE, LogStore
from unit.server.storage.logs.test_store import MASTER, WORKER, lines, shown

SEGMENT, INDEX = Path("p") / "j" / "segment", Path("p") / "j" / "segment.records"

Shown = list[tuple[int, str, int, str]]


def written(directory: Path, chunks: int = 40) -> Shown:
    """Write a log of two replicas and the service in many chunks; returns what a reader gets."""
    store = LogStore(directory)
    have = {MASTER: 0, WORKER: 0, SERVICE: 0}
    dice = random.Random(7)
    for _ in range(chunks):
        stream = dice.choice([MASTER, WORKER, SERVICE])
        texts = [f"{stream.task} {have[stream] + n}" for n in range(dice.randint(1, 5))]
        have[stream] = store.append("p", "j", stream, have[stream], lines(*texts)).next
    return shown(store)


def texts_of(entries: Shown, task: str) -> list[str]:
    return [text for _, owner, _, text in entries if owner == task]


def flip(path: Path, offset: int, count: int = 1, value: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    for at in range(offset, offset + count):
        data[at] = data[at] ^ 0x15 if value is None else value
    path.write_bytes(data)


def record_at(directory: Path, cursor: int) -> tuple[int, int, set[int]]:
    """Offset, length and cursors of the intact record that has a line."""
    offset = 0
    for raw in (directory / SEGMENT).read_bytes().splitlines(keepends=True):
        if (record := decode(raw)) is not None:
            cursors = set(range(record.cursor, record.cursor + len(record.texts)))
            if cursor in cursors:
                return offset, len(raw), cursors
        offset += len(raw)
    raise AssertionError(cursor)


def assert_only_damaged(now: Shown, before: Shown, cursors: set[int]) -> None:
    assert [entry[:3] for entry in now] == [entry[:3] for entry in before]
    assert {entry[0] for entry in now if entry[3] == DAMAGED} == cursors
    assert [entry for entry in now if entry[0] not in cursors] == [entry for entry in before if entry[0] not in cursors]


def assert_agents_complete(directory: Path, before: Shown) -> None:
    """Agents send everything again: each stream is complete then, and the cursors that were seen keep their lines."""
    store = LogStore(directory, durable=False)
    seen = shown(store)
    for stream in (MASTER, WORKER, SERVICE):
        sent = lines(*texts_of(before, stream.task))
        store.append("p", "j", stream, 0, sent)
        assert store.verify("p", "j", stream, LogEnd(count=len(sent), sha256=digest(sent)))
    assert shown(store)[: len(seen)] == seen == before[: len(seen)]
    assert shown(LogStore(directory)) == shown(store)


@pytest.mark.parametrize("part", [0, 3, 12, 40, -1])
def test_damaged_record_says_so_and_everything_else_is_served(
    tmp_path: Path, part: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = written(tmp_path)
    offset, length, damaged = record_at(tmp_path, 9)
    assert 1 < len(damaged) < 9
    flip(tmp_path / SEGMENT, offset + part % length)
    store = LogStore(tmp_path)
    assert_only_damaged(shown(store), before, damaged)
    assert_only_damaged(shown(LogStore(tmp_path)), before, damaged)
    page = store.read_back("p", "j", 12)
    assert [(e.cursor, e.task, e.number, e.text) for e in page.entries] == [
        (*entry[:3], DAMAGED if entry[0] in damaged else entry[3]) for entry in before[:11]
    ]
    assert shown(store)[8][3] == DAMAGED
    message = f"Lines {min(damaged)} to {max(damaged)} of the log"
    assert sum(message in logged for logged in caplog.messages) == 2, "once for each process"


@pytest.mark.parametrize(
    "break_it", [Path.unlink, lambda path: os.truncate(path, 0), lambda path: os.truncate(path, 211)]
)
def test_index_that_is_lost_is_rebuilt_as_it_was(tmp_path: Path, break_it: Callable[[Path], None]) -> None:
    before = written(tmp_path)
    running = LogStore(tmp_path)
    assert shown(running) == before
    break_it(tmp_path / INDEX)
    assert shown(LogStore(tmp_path)) == before
    assert shown(running) == before


def test_index_that_is_damaged_under_a_running_server_is_rebuilt_by_its_reader(tmp_path: Path) -> None:
    before = written(tmp_path)
    store = LogStore(tmp_path)
    assert shown(store) == before
    flip(tmp_path / INDEX, 10 * SIZE + 9, 30)
    assert shown(store) == before


def test_record_behind_a_damaged_index_entry_keeps_its_place(tmp_path: Path) -> None:
    before = written(tmp_path)
    flip(tmp_path / INDEX, 4 * SIZE, 3)
    places = [record_at(tmp_path, cursor) for cursor in (40, len(before))]
    for offset, _, _ in places:
        flip(tmp_path / SEGMENT, offset + 5, 3)
    assert_only_damaged(shown(LogStore(tmp_path)), before, places[0][2] | places[1][2])


@pytest.mark.parametrize("name", [SEGMENT, INDEX])
def test_file_torn_anywhere_is_repaired(tmp_path: Path, name: Path) -> None:
    before = written(tmp_path, 2)
    whole = {path: (tmp_path / path).read_bytes() for path in (SEGMENT, INDEX)}
    for size in range(0, len(whole[name]), 7):
        for path, data in whole.items():
            (tmp_path / path).write_bytes(data[:size] if path == name else data)
        assert_agents_complete(tmp_path, before)


def test_segment_that_is_gone_is_filled_again(tmp_path: Path) -> None:
    before = written(tmp_path)
    running = LogStore(tmp_path)
    shown(running)
    (tmp_path / SEGMENT).unlink()
    assert running.append("p", "j", MASTER, 5, lines("a")) == (0, 0, False, ())
    assert_agents_complete(tmp_path, before)


def test_zeros_and_garbage_after_a_power_failure_are_cut_off(tmp_path: Path) -> None:
    before = written(tmp_path)
    offset, _, cursors = record_at(tmp_path, len(before) - 2)
    size = (tmp_path / SEGMENT).stat().st_size
    flip(tmp_path / SEGMENT, offset, size - offset, 0)
    with (tmp_path / INDEX).open("ab") as file:
        file.write(b"\0" * 57)
    assert shown(LogStore(tmp_path)) == before[: min(cursors) - 1]
    assert_agents_complete(tmp_path, before)
    with (tmp_path / SEGMENT).open("ab") as file:
        file.write(b"\0" * 57 + b'\n01234567 [400,1,"master')
    assert_agents_complete(tmp_path, shown(LogStore(tmp_path)))


@pytest.mark.parametrize("fail_at", range(4))
def test_full_disk_loses_nothing_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int) -> None:
    before = written(tmp_path)
    store = LogStore(tmp_path)
    assert shown(store) == before
    calls = 0
    real = os.pwrite

    def full(file: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls >= fail_at:
            if calls == fail_at:
                return real(file, bytes(data)[: len(data) // 2 + 3], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, offset)

    count = len(texts_of(before, MASTER.task))
    monkeypatch.setattr(os, "pwrite", full)
    if fail_at < 3:
        with pytest.raises(OSError, match="No space"):
            store.append("p", "j", MASTER, count, lines("a", "b", "c"))
    seen = shown(store)
    assert seen[: len(before)] == before
    monkeypatch.undo()
    assert shown(LogStore(tmp_path))[: len(seen)] == seen
    for again in (store, LogStore(tmp_path)):
        assert again.append("p", "j", MASTER, count, lines("a", "b", "c")).next == count + 3
    assert texts_of(shown(store), MASTER.task)[count:] == ["a", "b", "c"]
    assert shown(LogStore(tmp_path)) == shown(store)


def test_segment_that_cannot_be_opened_or_read_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(tmp_path)
    whole = {path: (tmp_path / path).read_bytes() for path in (SEGMENT, INDEX)}
    real = Path.open

    def fail(path: Path, mode: str = "r") -> Any:
        if path.name == "segment":
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, mode)

    monkeypatch.setattr(Path, "open", fail)
    store = LogStore(tmp_path)
    with pytest.raises(OSError, match="Too many"):
        shown(store)
    with pytest.raises(OSError, match="Too many"):
        store.append("p", "j", MASTER, 0, lines("a"))
    monkeypatch.undo()
    monkeypatch.setattr(RecordReader, "_read", lambda *_: b"")  # a disk that fails to read
    assert {text for *_, text in shown(LogStore(tmp_path))} == {DAMAGED}
    monkeypatch.undo()
    assert {path: (tmp_path / path).read_bytes() for path in whole} == whole
    assert shown(store) == before


def test_reader_does_not_wait_for_a_writer_that_is_stopped(tmp_path: Path) -> None:
    before = written(tmp_path)
    store = LogStore(tmp_path, write_wait_s=0.05, read_wait_s=0.01)
    count = len(texts_of(before, MASTER.task))
    with locked(tmp_path / SEGMENT.parent, 1):
        assert shown(store) == before
        assert store.tail("p", "j", MASTER, 1) == (texts_of(before, MASTER.task)[-1],)
        with pytest.raises(LockTimeout):
            store.append("p", "j", MASTER, count, lines("new"))
    assert store.append("p", "j", MASTER, count, lines("new")).new == 1
