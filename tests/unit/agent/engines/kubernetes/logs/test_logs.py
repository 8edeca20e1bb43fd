"""Copies of logs across broken connections and rotations."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from beds.waiting import until
from trainyard_agent.engines.kubernetes.api.client import KubeDown
from trainyard_agent.engines.kubernetes.logs.log_copies import LogCopies
from trainyard_agent.engines.kubernetes.logs.logs import LogSource
from trainyard_agent.host.files import remove_tree
from trainyard_protocol.wire.logs import LogGap, LogPosition

KEY = ("1" * 32, "master-replica-0")


def line(number: int, second: int) -> bytes:
    return f"2026-01-01T10:00:{second:02d}.{number:06d}000Z line {number}\n".encode()


class LogServer:
    """An API server that has some of the lines at each read."""

    def __init__(self, *reads: bytes, fails: bool = False) -> None:
        self.reads, self.asked, self.fails = list(reads), list[str](), fails

    def log(self, _pod: str, _container: str, since: str, _quiet_s: float | None) -> Iterator[bytes]:
        self.asked.append(since)
        content = self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]
        yield from (content[at : at + 7] for at in range(0, len(content), 7))
        if self.fails and len(self.reads) > 1:
            raise KubeDown("cut")


def copied(
    tmp_path: Path, server: LogServer, position: LogPosition | None = None, seen: tuple[tuple[bool, bool], ...] = ()
) -> LogCopies:
    """`seen`: the phases of the container, the last one for ever."""
    copies = LogCopies(server, tmp_path)  # type: ignore[arg-type] # of a client only `log`
    seen = seen or ((True, False),) * (len(server.reads) - 1) + ((True, True),)
    phases = itertools.chain(seen, itertools.repeat(seen[-1]))
    source = LogSource("pod", lambda: next(phases), list)
    copies.follow(KEY, source)
    if position is not None:
        copies.resume(KEY, position)
    while not copies.read(KEY, 1 << 30, 1, 1).complete:
        pass
    return copies


def texts(copies: LogCopies, start: int = 0) -> list[str]:
    return [one.text for one in copies.read(KEY, start, 100, 1 << 20).lines]


def test_connections_that_break_lose_and_repeat_no_line(tmp_path: Path) -> None:
    lines = [line(2, 5), line(1, 5), *(line(n, 5 + n) for n in range(3, 9))]  # two streams: times are not in order
    first, second = b"".join(lines[:2]) + lines[2][:20], b"".join(lines[:5])
    rest = b"".join(lines[3:])  # of the second before the last line on
    server = LogServer(first, second, rest, rest, fails=True)
    copies = copied(tmp_path, server)
    assert texts(copies) == [f"line {n}" for n in (2, 1, 3, 4, 5, 6, 7, 8)]
    assert server.asked[1] == "2026-01-01T10:00:04Z"
    assert copies.read(KEY, 0, 100, 1 << 20).gap is None


def test_rotation_is_told_as_a_gap_unless_the_log_was_followed_all_the_time(tmp_path: Path) -> None:
    reads = line(1, 1) + line(2, 2), line(7, 20) + line(8, 21)
    whole = copied(tmp_path / "whole", LogServer(*reads))
    assert (texts(whole), whole.read(KEY, 2, 1, 1).gap) == ([f"line {n}" for n in (1, 2, 7, 8)], None)

    cut = copied(tmp_path / "cut", LogServer(*reads, reads[1], fails=True))
    assert texts(cut) == ["line 1", "line 2"]  # a slice begins at a gap
    found = cut.read(KEY, 2, 100, 1 << 20)
    assert [one.text for one in found.lines] == ["line 7", "line 8"]
    assert found.gap == LogGap(after="2026-01-01T10:00:02.000002Z", before="2026-01-01T10:00:20.000007Z")


def test_first_line_that_is_late_is_behind_a_gap_in_a_log_that_nobody_followed(tmp_path: Path) -> None:
    def first_gap(begin: int) -> LogGap | None:
        copies = LogCopies(LogServer(line(3, begin)), tmp_path / str(begin))  # type: ignore[arg-type] # as above
        started = "2026-01-01T10:00:00Z"
        copies.follow(KEY, LogSource("pod", lambda: (True, True), list, started=lambda: started))
        while not (found := copies.read(KEY, 0, 1, 1)).lines:
            pass
        return found.gap

    assert first_gap(9) is None
    assert first_gap(11) == LogGap(after="2026-01-01T10:00:00.000000Z", before="2026-01-01T10:00:11.000003Z")


def test_end_that_no_kubelet_has_any_more_is_told_as_a_gap_unless_it_was_followed(tmp_path: Path) -> None:
    gone = b"unable to retrieve container logs for containerd://0"
    followed = copied(tmp_path / "followed", LogServer(line(1, 1), gone))
    assert (texts(followed), followed.read(KEY, 1, 1, 1).gap) == (["line 1"], None)
    cut = copied(tmp_path / "cut", LogServer(line(1, 1), gone, gone, fails=True))
    assert texts(cut) == ["line 1"]
    assert cut.read(KEY, 1, 1, 1).gap == LogGap(after="2026-01-01T10:00:01.000001Z", before="")


def test_lines_of_nodes_in_any_zone_are_whole_and_in_utc(tmp_path: Path) -> None:
    """Followed, cut off, and taken up again by an agent that knows the position alone: the zone is the node's."""
    offsets = ("Z", "+14:00", "-03:30")
    wrong = {}
    for offset in offsets:
        zone = datetime.fromisoformat(f"2026-01-01T00:00:00{offset}").tzinfo
        begin = datetime(2026, 1, 1, 10, tzinfo=UTC)
        times = [begin + timedelta(seconds=7 * number, microseconds=number) for number in range(6)]
        stamps = [time.astimezone(zone).isoformat(timespec="microseconds") for time in times]
        raws = [f"{stamp.replace('+00:00', 'Z')} line {n}\n".encode() for n, stamp in enumerate(stamps)]
        raws[3] = raws[3].replace(b".000003", b".000003999")  # the API has nanoseconds
        server = LogServer(b"".join(raws[:3]), b"".join(raws[2:]), b"".join(raws[5:]), fails=True)
        copies = copied(tmp_path / offset.replace(":", ""), server)
        found = copies.read(KEY, 0, 100, 1 << 20)
        last = found.lines[2].time if len(found.lines) > 2 else ""
        position = LogPosition(next=3, last_time=last, same_time=1)
        moved = copied(tmp_path / f"moved {offset}", LogServer(b"".join(raws[2:])), position)
        seen = ([(one.time, one.text) for one in found.lines], texts(moved, 3), (found.gap, server.asked))
        expected = (
            [(f"{time:%Y-%m-%dT%H:%M:%S.%f}Z", f"line {n}") for n, time in enumerate(times)],
            ["line 3", "line 4", "line 5"],
            (None, ["", "2026-01-01T10:00:13Z", "2026-01-01T10:00:34Z"]),
        )
        if seen != expected:
            wrong[offset] = seen
    assert not wrong


def test_long_line_of_an_older_kubelet_has_its_times_taken_out(tmp_path: Path) -> None:
    stamp = b"2026-01-01T10:00:01.000000001Z "
    pieces = [b"x" * (1 << 14), b"x" * (1 << 14), b"xyz\n"]
    copies = copied(tmp_path, LogServer(b"".join(stamp + piece for piece in pieces)))
    assert texts(copies) == ["x" * (1 << 15) + "xyz"]


def test_copy_that_was_removed_or_changed_is_made_again_behind_what_the_server_has(tmp_path: Path) -> None:
    for number, name in enumerate(("the directory", "the file", "the file, by a directory")):
        lines = [line(n, n) for n in range(1, 5)]
        server = LogServer(b"".join(lines[:2]), b"".join(lines), fails=True)
        copies = LogCopies(server, tmp_path / str(number))  # type: ignore[arg-type] # as above
        has_ended = Event()
        copies.follow(KEY, LogSource("pod", lambda: (True, has_ended.is_set()), list))  # noqa: B023
        until(lambda: len(texts(copies)) == 2, "two lines")  # noqa: B023
        copy = tmp_path / str(number) / "/".join(KEY) / "from-0"
        remove_tree(copy if number == 0 else copy / "log.jsonl")
        if number == 2:
            (copy / "log.jsonl").mkdir()
        has_ended.set()

        with pytest.raises(FileNotFoundError, match="made again"):
            until(lambda: copies.read(KEY, 1, 10, 1 << 20) and False, name)  # noqa: B023
        copies.resume(KEY, LogPosition(next=1, last_time="2026-01-01T10:00:01.000001Z", same_time=1))
        until(lambda: copies.read(KEY, 4, 1, 1).complete, name)  # noqa: B023
        assert texts(copies, 1) == ["line 2", "line 3", "line 4"], name
