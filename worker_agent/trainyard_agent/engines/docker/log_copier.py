"""Copies a container's output from the engine to our numbered lines.

The engine keeps every byte in order, for as long as the container exists. So after any failure a log is continued by
reading the engine's copy from its beginning and skipping the lines that we have. With a quota the engine keeps less:
once it has dropped its beginning (a log with many overwritten lines) ours cannot be continued, and is cut there.
"""

import contextlib
import logging
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from trainyard_agent.engines.docker.client import DockerClient, EngineError, LogStream
from trainyard_agent.host.files import write_json
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.supervisor import CUT, LineSplitter, entries, fitting, truncate_torn_line
from trainyard_protocol.wire.logs import Stream

_HEADER = struct.Struct(">BxxxL")
_STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
_MICROSECONDS = 26  # characters of a time up to microseconds
REMOVED = {"container": "removed"}
"""The note at the end of a log, in done.json, that may lack its last lines."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

_log = logging.getLogger(__name__)


class LineReader:
    """Translates the engine's log stream into the lines of log.jsonl, with newlines.

    A frame is one write: stream, length, RFC 3339 time, a blank, the bytes.
    Source: Docker Engine API, "Attach to a container", stream format.
    """

    def __init__(self, mask: Mask | None = None) -> None:
        self._rest = b""
        self._splitters: dict[Stream, LineSplitter] = {
            stream: LineSplitter(mask=mask) for stream in _STREAMS.values()
        }
        self._times: dict[Stream, str] = {}

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete. Raises EngineError where the engine writes an error of its own (stream 3)."""
        lines: list[bytes] = []
        data, at = self._rest + chunk, 0
        while len(data) - at >= _HEADER.size:
            number, length = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + length
            if len(data) < end:
                break
            payload = data[at + _HEADER.size : end]
            if number not in _STREAMS:
                raise EngineError(f"the engine broke it off: {payload.decode('utf-8', 'replace').strip()}")
            time, _, output = payload.partition(b" ")
            stream = _STREAMS[number]
            self._times[stream] = f"{time[:_MICROSECONDS].decode('ascii')}Z"
            lines += self._entries(stream, self._splitters[stream].feed(output))
            at = end
        self._rest = data[at:]
        return lines

    def end(self) -> list[bytes]:
        """The last lines of streams that ended without a newline."""
        return [
            line for stream in self._times for line in self._entries(stream, self._splitters[stream].end())
        ]

    def _entries(self, stream: Stream, lines: list[tuple[str, int]]) -> list[bytes]:
        return [entry.encode() for entry in entries(self._times[stream], stream, lines)]


class LogCopier(threading.Thread):
    """Copies one container's log to `directory`/log.jsonl while it grows, and writes done.json when it is complete.

    `has_ended` returns whether the container has ended or was removed, or raises EngineError if that is unknown.
    `secrets` returns the values to mask, the same each time, or raises EngineError or OSError; without them nothing is
    copied. The thread ends with the container, or by `close`; then another one may continue.
    """

    def __init__(
        self,
        engine: DockerClient,
        container: str,
        directory: Path,
        has_ended: Callable[[], bool],
        quota: int = 0,
        secrets: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        super().__init__(name=f"log of {container[:12]}", daemon=True)
        self._engine = engine
        self._container = container
        self._directory = directory
        self._has_ended = has_ended
        self._quota = quota
        self._secrets = secrets
        self._closing = threading.Event()
        self._stream: LogStream | None = None
        self._lines: int | None = None  # of our log; None: unknown, of one that is cut

    def run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                self._copy(follow=True)
                if self._has_ended():
                    # Some engines close a followed log before its last lines.
                    is_whole = self._copy(follow=False)
                    if not self._closing.is_set():
                        counted = {} if self._lines is None else {"lines": self._lines}
                        write_json(self._directory / "done.json", counted if is_whole else REMOVED)
                    return
            except (EngineError, OSError) as error:
                if self._closing.is_set() or not self._directory.exists():
                    return
                _log.warning("the log of container %s: %s; trying again", self._container[:12], error)
            self._closing.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def close(self) -> None:
        self._closing.set()
        stream = self._stream
        if stream is not None:
            stream.interrupt()
        if self.is_alive():
            self.join()

    def _copy(self, follow: bool) -> bool:
        """Append the lines that we lack, unless the log is cut. False if the container is gone, with its log."""
        if (self._directory / CUT).exists():
            return True
        mask = Mask(self._secrets())
        self._stream = stream = self._engine.log(self._container, follow)
        if stream is None:
            return False
        if self._closing.is_set():  # `close` did not see this stream
            stream.interrupt()
        reader = LineReader(mask)
        path = self._directory / "log.jsonl"
        stored = truncate_torn_line(path)
        with contextlib.closing(stream), path.open("ab", buffering=0) as file:
            copy = _LogReading(file, stored, _first_line(path), self._quota)
            for chunk in stream:
                copy.append(reader.feed(chunk))
                if copy.is_cut:
                    break
            else:
                if not follow:
                    copy.append(reader.end())
                    copy.end()
        self._lines = copy.count
        if copy.is_cut:
            write_json(self._directory / CUT, {})
        return True


class _LogReading:
    """One pass over the engine's copy, from its beginning. `file` is our log, which has `stored` lines, and then
    `count`."""

    def __init__(self, file: BinaryIO, stored: int, first: bytes, quota: int) -> None:
        self._file = file
        self._to_skip = self.count = stored
        self._first = first
        self._quota = quota
        self._size = file.tell()
        self.is_cut = False

    def append(self, lines: list[bytes]) -> None:
        if lines and self._first and self._quota:
            self.is_cut = lines[0] != self._first  # the engine has dropped its beginning
        if lines:
            self._first = b""
        if self.is_cut:
            return
        new, self._to_skip = lines[self._to_skip :], max(0, self._to_skip - len(lines))
        if self._quota:
            count = fitting([len(line) for line in new], self._quota - self._size)
            self.is_cut, new = count < len(new), new[:count]
        if new:
            data = b"".join(new)
            self._size += len(data)
            _write(self._file, data)
            self.count += len(new)

    def end(self) -> None:
        """End of the engine's copy: the log is cut if the copy was shorter than ours."""
        self.is_cut |= bool(self._quota and self._to_skip)


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline()
    except FileNotFoundError:
        return b""


def _write(file: BinaryIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]
