"""What the disk does to logs: nothing of it breaks a writer or a reader, or moves a cursor."""

import asyncio
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard_protocol.sync import LogEnd, digest
from trainyard_server.background import scrub_forever
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.file_lock import held
from trainyard_server.storage.logs import job_log
from trainyard_server.storage.logs.codec import DAMAGED, encode
from trainyard_server.storage.logs.index import SIZE, packed
from trainyard_server.storage.logs.scrub import Scrub
from trainyard_server.storage.logs.store import SERVICE, LogBusy, LogStore
from unit.server.test_log_store import MASTER, WORKER, everything, lines, shown

JOB = Path("p") / "j"


def written(directory: Path, chunks: int = 40) -> list[tuple[int, str, int, str]]:
    """A log of two replicas and the service, in many chunks; answers with what a reader sees."""
    store = LogStore(directory)
    have = {MASTER: 0, WORKER: 0, SERVICE: 0}
    dice = random.Random(7)
    for _ in range(chunks):
        stream = dice.choice([MASTER, WORKER, SERVICE])
        texts = [f"{stream.task} {have[stream] + n}" for n in range(dice.randint(1, 5))]
        have[stream] = store.append("p", "j", stream, have[stream], lines(*texts)).next
    return shown(store)


def sent(entries: list[tuple[int, str, int, str]], task: str) -> list[str]:
    return [text for _, owner, _, text in entries if owner == task]


def flip(path: Path, offset: int, count: int = 1, value: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    for at in range(offset, offset + count):
        data[at] = data[at] ^ 0x15 if value is None else value
    path.write_bytes(data)


def test_line_that_was_damaged_keeps_its_place_and_comes_back_with_its_agent(tmp_path: Path) -> None:
    before = written(tmp_path)
    path = tmp_path / JOB / MASTER.filename
    offset = path.read_bytes().index(b'"n": 3')
    flip(path, offset, 10)
    store = LogStore(tmp_path)
    now = shown(store)
    assert [entry[:3] for entry in now] == [entry[:3] for entry in before]
    assert [entry[1:] for entry, old in zip(now, before, strict=True) if entry != old] == [
        (MASTER.task, 3, DAMAGED)
    ]
    assert store.problems() == [("p", "j", MASTER.filename, "some of its lines are damaged")]
    assert store.next("p", "j", MASTER) == 3
    texts = sent(before, MASTER.task)
    assert store.append("p", "j", MASTER, 3, lines(*texts[3:])) == (len(texts), 0, False)
    assert shown(store) == before
    assert store.problems() == []


@pytest.mark.parametrize("left", [0, 1, 100, None])
def test_stream_that_lost_its_end_is_asked_for_again_from_there(tmp_path: Path, left: int | None) -> None:
    before = written(tmp_path)
    path = tmp_path / JOB / WORKER.filename
    if left is None:
        path.unlink()
    else:
        os.truncate(path, left)
    store = LogStore(tmp_path)
    texts = sent(before, WORKER.task)
    now = shown(store)
    assert [entry[:3] for entry in now] == [entry[:3] for entry in before]
    assert [text for *_, text in now if text == DAMAGED]
    assert store.problems()[0][:3] == ("p", "j", WORKER.filename)
    asked = store.next("p", "j", WORKER)
    assert asked == (0 if not left or left == 1 else asked) < len(texts)
    end = LogEnd(count=len(texts), sha256=digest(lines(*texts)))
    assert not store.verify("p", "j", WORKER, end)
    for start in range(asked, len(texts), 3):  # in several chunks
        store.append("p", "j", WORKER, start, lines(*texts[start : start + 3]))
    assert store.verify("p", "j", WORKER, end)
    assert shown(store) == before
    assert store.problems() == []


def test_new_lines_come_behind_a_stream_that_lost_its_end(tmp_path: Path) -> None:
    before = written(tmp_path)
    os.truncate(tmp_path / JOB / WORKER.filename, 10)
    store = LogStore(tmp_path)
    texts = sent(before, WORKER.task)
    assert store.append("p", "j", WORKER, len(texts), lines("new")).new == 1
    assert shown(store)[-1] == (len(before) + 1, WORKER.task, len(texts), "new")
    assert [entry[:3] for entry in shown(LogStore(tmp_path))[:-1]] == [entry[:3] for entry in before]


@pytest.mark.parametrize("break_it", [Path.unlink, lambda path: os.truncate(path, 0)])
def test_line_that_comes_back_as_another_one_stays_lost_and_is_not_asked_for_for_ever(
    tmp_path: Path, break_it: Callable[[Path], None]
) -> None:
    before = written(tmp_path)
    break_it(tmp_path / JOB / MASTER.filename)
    store = LogStore(tmp_path)
    count = len(sent(before, MASTER.task))
    assert store.append("p", "j", MASTER, 0, lines(*["something else"] * count)).next == count
    assert [text for _, task, _, text in shown(store) if task == MASTER.task] == [DAMAGED] * count
    assert store.next("p", "j", MASTER) == count
    assert store.append("p", "j", MASTER, count, lines("new")) == (count + 1, 1, False)
    assert "lines are lost" in store.problems()[0][3]


def test_character_that_flipped_is_found_by_the_digest_and_put_right(tmp_path: Path) -> None:
    before = written(tmp_path)
    path = tmp_path / JOB / MASTER.filename
    path.write_bytes(path.read_bytes().replace(b"master-replica-0 2", b"mastor-replica-0 2", 1))
    store = LogStore(tmp_path)
    texts = sent(before, MASTER.task)
    end = LogEnd(count=len(texts), sha256=digest(lines(*texts)))
    assert not store.verify("p", "j", MASTER, end)
    assert store.next("p", "j", MASTER) == 0
    store.append("p", "j", MASTER, 0, lines(*texts))
    assert store.verify("p", "j", MASTER, end)
    assert shown(store) == before


@pytest.mark.parametrize("seed", range(30))
def test_index_that_was_damaged_in_the_middle_keeps_every_cursor(tmp_path: Path, seed: int) -> None:
    before = written(tmp_path)
    index = tmp_path / JOB / "index"
    dice = random.Random(seed)
    for _ in range(dice.randint(1, 4)):
        size = dice.choice([1, 1, 8, 100, 300])
        at = dice.randrange(index.stat().st_size - size)
        flip(index, at, size, dice.choice([None, 0, 0xFF]))
    store = LogStore(tmp_path)
    assert shown(store) == before
    assert shown(LogStore(tmp_path)) == before
    assert store.append("p", "j", MASTER, len(sent(before, MASTER.task)), lines("new")).new == 1
    assert shown(LogStore(tmp_path))[:-1] == before


@pytest.mark.parametrize(
    "break_it", [Path.unlink, lambda path: os.truncate(path, 0), lambda path: os.truncate(path, 211)]
)
def test_index_that_is_lost_is_made_again_as_it_was(tmp_path: Path, break_it: Callable[[Path], None]) -> None:
    before = written(tmp_path)
    running = LogStore(tmp_path)
    assert shown(running) == before
    break_it(tmp_path / JOB / "index")
    assert shown(LogStore(tmp_path)) == before
    assert shown(running) == before


def test_index_that_is_damaged_under_a_running_server_is_repaired_by_its_reader(tmp_path: Path) -> None:
    before = written(tmp_path)
    store = LogStore(tmp_path)
    assert shown(store) == before
    flip(tmp_path / JOB / "index", 10 * SIZE + 9, 30)
    assert shown(store) == before


def test_index_and_stream_damaged_at_the_same_time_keep_the_other_cursors(tmp_path: Path) -> None:
    before = written(tmp_path)
    flip(tmp_path / JOB / "index", 20 * SIZE, 5 * SIZE)
    _, task, number, _ = before[22]
    path = tmp_path / JOB / f"{'0' if task == 'service' else '1'}.{task}.jsonl"
    where = path.read_bytes().index(b'{"n": %d,' % number)
    flip(path, where, 200)
    store = LogStore(tmp_path)
    now = {cursor: rest for cursor, *rest in shown(store)}
    assert {cursor: rest for cursor, *rest in before if cursor <= 20 or cursor > 40}.items() <= now.items()
    positions = store.counts("p", "j")
    assert {stream.task: count for stream, count in positions.items()} == {
        stream.task: len(sent(before, stream.task)) for stream in (MASTER, WORKER, SERVICE)
    }


def test_log_of_the_first_version_is_read_repaired_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "encode", lambda number, _cursor, line: encode(number, None, line))

    def unchecked(*given: object) -> bytes:
        record = bytearray(packed(*given))  # type: ignore[arg-type]
        record[5] = 0
        return bytes(record)

    monkeypatch.setattr(job_log, "packed", unchecked)
    before = written(tmp_path)
    monkeypatch.undo()
    assert shown(LogStore(tmp_path)) == before
    flip(tmp_path / JOB / "index", 10 * SIZE, SIZE)
    assert shown(LogStore(tmp_path)) == before
    store = LogStore(tmp_path)
    assert store.append("p", "j", WORKER, len(sent(before, WORKER.task)), lines("new")).new == 1
    (tmp_path / JOB / "index").unlink()
    rebuilt = shown(LogStore(tmp_path))
    for task in (MASTER.task, WORKER.task, SERVICE.task):
        assert sent(rebuilt, task) == [*sent(before, task), *(["new"] if task == WORKER.task else [])]


@pytest.mark.parametrize("fail_at", range(4))
def test_disk_that_is_full_keeps_nothing_of_the_chunk_or_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    before = written(tmp_path)
    store = LogStore(tmp_path)
    assert shown(store) == before
    calls = 0
    real = os.pwrite

    def full(file: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls >= fail_at:
            if len(data) > SIZE and calls == fail_at:
                return real(file, bytes(data)[: len(data) // 2 + 3], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, offset)

    count = len(sent(before, MASTER.task))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        store.append("p", "j", MASTER, count, lines("a", "b", "c"))
    kept = shown(store)
    assert kept[: len(before)] == before
    monkeypatch.undo()
    assert shown(LogStore(tmp_path))[: len(kept)] == kept
    for again in (store, LogStore(tmp_path)):
        assert again.append("p", "j", MASTER, count, lines("a", "b", "c")).next == count + 3
    assert sent(shown(store), MASTER.task)[count:] == ["a", "b", "c"]
    assert shown(LogStore(tmp_path)) == shown(store)


def test_reader_does_not_wait_for_a_writer_that_stands_still(tmp_path: Path) -> None:
    before = written(tmp_path)
    store = LogStore(tmp_path, write_wait_s=0.05, read_wait_s=0.01)
    with held(tmp_path / JOB, 1):
        assert shown(store) == before
        assert store.tail("p", "j", MASTER, 1) == (sent(before, MASTER.task)[-1],)
        with pytest.raises(LogBusy):
            store.append("p", "j", MASTER, len(sent(before, MASTER.task)), lines("new"))
    assert store.append("p", "j", MASTER, len(sent(before, MASTER.task)), lines("new")).new == 1


def test_quota_keeps_whole_lines_up_to_it_and_never_cuts_the_service(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    texts = [f"{number} " + "x" * 100 for number in range(20)]
    taken = store.append("p", "j", MASTER, 0, lines(*texts), 1000)
    assert taken.full
    assert 0 < taken.new < 20
    assert store.append("p", "j", MASTER, 0, lines(*texts), 1000) == (taken.next, 0, True)
    assert store.append("p", "j", WORKER, 0, lines("y" * 100), 1000) == (0, 0, True), "one quota for the job"
    assert store.append("p", "j", SERVICE, 0, lines("z" * 2000), 1000) == (1, 1, False)
    assert (tmp_path / JOB / MASTER.filename).stat().st_size <= 1000
    assert len(everything(store)) == taken.new + 1


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"2026-", b"20x6-"), (b'"stdout"', b'"stdouu"'), (b'"text": "', b'"text": 7'), (b"}", b" ")],
)
def test_line_that_makes_no_sense_any_more_is_a_damaged_one(tmp_path: Path, old: bytes, new: bytes) -> None:
    before = written(tmp_path)
    path = tmp_path / JOB / WORKER.filename
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    (entry,) = [entry for entry in everything(LogStore(tmp_path)) if entry.text == DAMAGED]
    assert (entry.task, entry.number, entry.severity) == (WORKER.task, 0, "ERROR")
    assert len(shown(LogStore(tmp_path))) == len(before)


def test_scrub_finds_what_nobody_has_read(tmp_path: Path) -> None:
    before = written(tmp_path)
    store = LogStore(tmp_path)
    store.append("p", "other", MASTER, 0, lines(*map(str, range(5000))))
    flip(tmp_path / JOB / MASTER.filename, 30, 5)
    (tmp_path / "p" / "other" / MASTER.filename).write_bytes(
        (tmp_path / "p" / "other" / MASTER.filename).read_bytes()[:-3]
    )
    scrub = Scrub(store)
    assert store.problems() == []
    steps = 0
    while scrub.step():
        steps += 1
    assert steps == 2 + 2, "a bounded number of lines in each, and one for the end of each job's"
    assert {problem[:3] for problem in store.problems()} == {
        ("p", "j", MASTER.filename),
        ("p", "other", MASTER.filename),
    }
    assert store.next("p", "j", MASTER) < len(sent(before, MASTER.task))
    assert scrub.step() is False


async def test_scrubbing_goes_on_round_after_round_until_all_closes(tmp_path: Path) -> None:
    written(tmp_path)
    store, notifier = LogStore(tmp_path), Notifier()
    task = asyncio.create_task(scrub_forever(store, notifier, 0.01, 0.001))
    while not store.problems():
        flip(tmp_path / JOB / MASTER.filename, 40, 5, 0)
        await asyncio.sleep(0.01)
    notifier.close()
    await task
