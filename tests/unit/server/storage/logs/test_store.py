import shutil
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.wire.logs import LogEnd, LogLine, digest
from trainyard_server.storage.logs.filter import LogFilter
from trainyard_server.storage.logs.store import SERVICE, LogMismatch, LogStore, Stream

MASTER, WORKER = Stream(1, "master-replica-0"), Stream(1, "worker-replica-0")


def lines(*texts: str) -> list[LogLine]:
    return [LogLine(time="2026-11-20T12:00:00Z", stream="stdout", text=text) for text in texts]


def everything(store: LogStore, **given: object) -> list[LogEntry]:
    entries: list[LogEntry] = []
    after = 0
    while True:
        result = store.read("p", "j", after, **given)  # type: ignore[arg-type]
        entries += result.entries
        after = result.last
        if not result.more:
            return entries


def shown(store: LogStore) -> list[tuple[int, str, int, str]]:
    return [(e.cursor, e.task, e.number, e.text) for e in everything(store)]


def test_lines_of_all_streams_have_one_order(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append("p", "j", SERVICE, 0, lines("queued"))
    store.append("p", "j", MASTER, 0, lines("m0", "m1"))
    store.append("p", "j", WORKER, 0, lines("w0"))
    store.append("p", "j", MASTER, 2, lines("m2"))
    assert shown(store) == [
        (1, "service", 0, "queued"),
        (2, "master-replica-0", 0, "m0"),
        (3, "master-replica-0", 1, "m1"),
        (4, "worker-replica-0", 0, "w0"),
        (5, "master-replica-0", 2, "m2"),
    ]
    assert store.counts("p", "j") == {SERVICE: 1, MASTER: 3, WORKER: 1}


def test_verify_of_a_stream_with_too_many_lines_or_another_digest_raises(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append("p", "j", MASTER, 0, lines("0", "1"))
    for end in (LogEnd(count=1, sha256=digest(lines("0"))), LogEnd(count=2, sha256="0" * 64)):
        with pytest.raises(LogMismatch) as caught:
            store.verify("p", "j", MASTER, end)
        assert caught.value.have == 2
    assert "do not have the digest" in str(caught.value)


def test_quota_counts_records_and_never_cuts_the_service(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    texts = [f"{number} " + "x" * 100 for number in range(20)]
    appended = store.append("p", "j", MASTER, 0, lines(*texts), 1000)
    assert appended.full
    assert 0 < appended.new < 20
    assert (tmp_path / "p" / "j" / "segment").stat().st_size <= 1000
    assert store.append("p", "j", MASTER, 0, lines(*texts), 1000) == (appended.next, 0, True, ())
    assert store.append("p", "j", WORKER, 0, lines("y" * 100), 1000) == (0, 0, True, ()), "one quota for the job"
    assert store.append("p", "j", SERVICE, 0, lines("z" * 2000), 1000) == (1, 1, False, ())
    assert len(everything(store)) == appended.new + 1


def test_log_with_a_record_for_each_line_is_read_and_continued(tmp_path: Path) -> None:
    directory = tmp_path / "p" / "j"
    directory.mkdir(parents=True)
    with (directory / "segment").open("wb") as segment:
        for number, (level, kind) in enumerate([("INFO", ""), ("ERROR", ""), ("INFO", ",2")]):
            time = f"2026-11-20T12:00:0{number}Z"
            data = f'[{number + 1},1,"{MASTER.task}",{number},"{time}","stderr","{level}","step {number}"{kind}]\n'
            segment.write(b"%08x " % crc32(data.encode()) + data.encode())
    (directory / "segment.index").write_bytes(bytes(3 * 37))
    store = LogStore(tmp_path)
    assert [(e.severity, e.text, e.overwritten) for e in everything(store)] == [
        ("INFO", "step 0", False),
        ("ERROR", "step 1", False),
        ("INFO", "step 2", True),
    ]
    assert store.append("p", "j", MASTER, 2, lines("step 2", "step 3", "step 4")).next == 5
    assert [e.cursor for e in everything(store, log_filter=LogFilter(severity="ERROR"))] == [2]
    assert [e.number for e in everything(LogStore(tmp_path), log_filter=LogFilter(reports=True))] == list(range(5))
    assert store.counts("p", "j") == {MASTER: 5}
    assert not (directory / "segment.index").exists()


@pytest.mark.parametrize("size", [7, 499])
def test_any_part_of_a_log_of_large_records_is_read_in_both_directions(tmp_path: Path, size: int) -> None:
    store = LogStore(tmp_path)
    for start in (0, 700):
        store.append("p", "j", MASTER, start, lines(*[f"{n}" for n in range(start, start + 700)]))
    store.append("p", "j", WORKER, 0, lines("ERROR: x", "y", "ERROR: z", *["w"] * 600))
    texts = [e.text for e in everything(store)]
    assert [e.text for e in everything(store, max_lines=size)] == texts
    before, back = len(texts) + 1, list[str]()
    while before > 1:
        page = store.read_back("p", "j", before, max_lines=size)
        assert [e.cursor for e in page.entries] == list(range(page.first, before))
        back, before = [*[e.text for e in page.entries], *back], page.first
    assert back == texts
    errors = LogFilter(severity="ERROR")
    assert [e.text for e in everything(store, log_filter=errors, max_lines=1)] == ["ERROR: x", "ERROR: z"]
    assert [e.cursor for e in store.read("p", "j", 1398, until=1402).entries] == [1399, 1400, 1401, 1402]


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x", ".hidden", "a\0b"])
def test_names_cannot_escape_the_directory(tmp_path: Path, name: str) -> None:
    store = LogStore(tmp_path / "logs")
    with pytest.raises(InvalidArgument):
        store.append(name, "j", MASTER, 0, lines("x"))
    with pytest.raises(InvalidArgument):
        store.append("p", name, MASTER, 0, lines("x"))
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@given(
    chunks=st.lists(
        st.tuples(st.sampled_from([MASTER, WORKER, SERVICE]), st.integers(0, 8), st.integers(0, 8)), max_size=25
    ),
    reopen_every=st.integers(1, 6),
)
def test_any_chunks_in_any_order_make_each_stream_a_prefix_without_gaps(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[tuple[Stream, int, int]], reopen_every: int
) -> None:
    directory = tmp_path_factory.mktemp("logs")
    store, have = LogStore(directory), {MASTER: 0, WORKER: 0, SERVICE: 0}
    seen: list[tuple[int, str, int, str]] = []
    for step, (stream, start, count) in enumerate(chunks):
        texts = [f"{stream.task} {n}" for n in range(start, start + count)]
        before = have[stream]
        have[stream], new, *_ = store.append("p", "j", stream, start, lines(*texts))
        assert have[stream] == (max(before, start + count) if start <= before else before)
        assert new == have[stream] - before
        if step % reopen_every == 0:
            store = LogStore(directory)
        now = shown(store)
        assert now[: len(seen)] == seen
        seen = now
    for stream, count in have.items():
        numbers = [number for _, task, number, _ in seen if task == stream.task]
        assert numbers == list(range(count))
    shutil.rmtree(directory)
