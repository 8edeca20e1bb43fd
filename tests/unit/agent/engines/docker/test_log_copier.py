"""From the engine's frames to numbered lines, whatever breaks in between."""

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainyard_agent.engines.docker.client import EngineDown
from trainyard_agent.engines.docker.streams.log_copier import ContainerLogCopier, LineReader
from trainyard_agent.runtimes.base import LogSlice
from trainyard_agent.runtimes.log_file import LogFile

TIME = "2026-11-21T05:59:45.384132660Z"


def frame(text: bytes, stream: int = 1) -> bytes:
    data = f"{TIME} ".encode() + text
    return struct.pack(">BxxxL", stream, len(data)) + data


def texts(lines: list[str]) -> list[str]:
    return [json.loads(line)["text"] for line in lines]


CUT = [("é" * 20_000 + "\n").encode()[at : at + 16_384] for at in range(0, 40_001, 16_384)]
"""A line as the engine cuts it."""


@pytest.mark.parametrize(
    ("frames", "expected", "last"),
    [
        ([frame(b"one\n"), frame(b"two\n", 2), frame("größe\n".encode())], ["one", "two", "größe"], []),
        ([frame(b"out"), frame(b"err", 2), frame(b" more\n"), frame(b" end\n", 2)], ["out more", "err end"], []),
        ([frame(piece) for piece in CUT], ["é" * 20_000], []),
        ([frame(b"last")], [], ["last"]),
    ],
    ids=["several", "two streams", "what the engine cut", "no newline"],
)
def test_line_reader_takes_frames_in_any_pieces(frames: list[bytes], expected: list[str], last: list[str]) -> None:
    data = b"".join(frames)
    for size in (1, 1000, len(data)):
        reader = LineReader()
        found = [line for at in range(0, len(data), size) for line in reader.feed(data[at : at + size])]
        assert (texts(found), texts(reader.end())) == (expected, last)


class TapeEngine:
    """Plays a container's log; the first readings of it break off early."""

    def __init__(self, *frames: bytes, breaks_after: tuple[int, ...] = ()) -> None:
        self.frames = frames
        self.breaks_after = list(breaks_after)
        self.readings = 0

    def log(self, container: str, follow: bool) -> "Tape":
        self.readings += 1
        return Tape(self.frames, self.breaks_after.pop(0) if self.breaks_after else None)


class Tape:
    def __init__(self, frames: tuple[bytes, ...], breaks_after: int | None) -> None:
        self._frames = frames
        self._breaks_after = breaks_after

    def __iter__(self) -> Iterator[bytes]:
        yield from self._frames[: self._breaks_after]
        if self._breaks_after is not None:
            raise EngineDown("cut")

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class Quick(ContainerLogCopier):
    pause_s = 0.001


def copier(
    engine: TapeEngine, directory: Path, quota: int = 0, has_ended: Callable[[], bool] = lambda: True
) -> ContainerLogCopier:
    directory.mkdir(exist_ok=True)
    return Quick(engine, "c" * 64, directory, has_ended, quota)  # type: ignore[arg-type] # only `log`


def copied(engine: TapeEngine, directory: Path, quota: int = 0) -> list[str]:
    copier(engine, directory, quota).run()
    return [line.text for line in slices(directory).lines]


def slices(directory: Path, start: int = 0) -> LogSlice:
    return LogFile(directory / "log.jsonl").slice(start, 10_000, 1 << 24, directory / "done.json")


def test_copier_writes_every_line_once_however_often_the_connection_breaks(tmp_path: Path) -> None:
    frames = [frame(f"line {n}\n".encode(), 1 + n % 2) for n in range(50)]
    engine = TapeEngine(*frames, frame(b"no newline"), breaks_after=(0, 7, 7, 30))
    assert copied(engine, tmp_path) == [*(f"line {n}" for n in range(50)), "no newline"]
    assert (slices(tmp_path, 45).complete, slices(tmp_path, 45).missing) == (True, 0)
    (tmp_path / "log.jsonl").write_bytes(b"".join((tmp_path / "log.jsonl").read_bytes().splitlines(True)[:20]))
    assert (slices(tmp_path, 15).complete, slices(tmp_path, 15).missing) == (True, 31)


def test_copier_reads_again_after_an_error_that_the_engine_writes_into_the_log(tmp_path: Path) -> None:
    class Failing(TapeEngine):
        def log(self, container: str, follow: bool) -> Tape:
            error = b"Error grabbing logs: invalid character"
            written = struct.pack(">BxxxL", 3, len(error)) + error if not self.readings else b""
            self.readings += 1
            return Tape((self.frames[0] + written, *self.frames[1:]), None)

    engine = Failing(frame(b"one\n"), frame(b"two\n"))
    assert copied(engine, tmp_path) == ["one", "two"]
    assert engine.readings > 1


def _replace(log: Path) -> None:
    log.rename(log.with_name("former"))
    log.write_bytes(b"{}\n" * 100)


def _replace_by_directory(log: Path) -> None:
    log.unlink()
    log.mkdir()


@pytest.mark.parametrize("damage", [Path.unlink, lambda log: os.truncate(log, 3), _replace, _replace_by_directory])
@pytest.mark.parametrize("quota", [0, 10_000])
def test_copier_whose_copy_was_changed_says_that_it_may_lack_lines(
    tmp_path: Path, damage: Callable[[Path], None], quota: int
) -> None:
    frames = frame(b"one\n"), frame(b"two\n"), frame(b"three\n")
    logs = LogFile(tmp_path / "log.jsonl")

    class Engine(TapeEngine):
        def log(self, container: str, follow: bool) -> "Tape":
            if self.readings:
                assert len(logs.read(0, 1, 1)) == 1
                damage(tmp_path / "log.jsonl")
            return super().log(container, follow)

    engine = Engine(*frames, breaks_after=(2,))
    copier(engine, tmp_path, quota, lambda: False).run()
    found = logs.slice(1, 10, 1 << 20, tmp_path / "done.json")
    assert (found.lines, found.complete, found.missing) == ((), True, None)


def test_copier_keeps_what_its_quota_has_room_for_however_often_the_connection_breaks(tmp_path: Path) -> None:
    frames = [frame(f"line {n}\n".encode(), 1 + n % 2) for n in range(50)]
    copied(TapeEngine(*frames), tmp_path / "whole")
    size = (tmp_path / "whole" / "log.jsonl").stat().st_size
    engine = TapeEngine(*frames, breaks_after=(0, 7, 7, 20))
    kept = copied(engine, tmp_path / "cut", size // 2)
    assert kept == [f"line {n}" for n in range(len(kept))]
    assert 20 <= len(kept) <= 25
    assert (tmp_path / "cut" / "log.jsonl").stat().st_size <= size // 2
    assert slices(tmp_path / "cut").cut
    assert slices(tmp_path / "cut").complete
    copied(TapeEngine(*frames), tmp_path / "enough", size)
    assert len(slices(tmp_path / "enough").lines) == 50
    assert not slices(tmp_path / "enough").cut
