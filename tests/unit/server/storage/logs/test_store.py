import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.wire.logs import LogEnd, LogLine, digest
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
