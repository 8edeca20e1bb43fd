"""From the engine's copy of a container's output to our numbered lines.

The engine keeps every byte for as long as the container is there, always in the same order. So whatever
happens to us, to the connection or to the engine, what continues a log is found by reading that copy from
its beginning and passing over as many lines as we have. With a quota it keeps less, and once it has dropped
its beginning (a log whose lines were overwritten again and again) nothing can continue ours: it is cut there.
"""

import contextlib
import logging
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from trainyard_agent.host.files import write_json
from trainyard_agent.runtimes.docker.engine import Engine, EngineError, LogStream
from trainyard_agent.runtimes.log_file import mend
from trainyard_agent.runtimes.process.supervisor import CUT, LineCutter, entries, fitting
from trainyard_protocol.sync import Stream

_HEADER = struct.Struct(">BxxxL")
_STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
_MICROSECONDS = 26  # so many characters of a time in nanoseconds
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

_log = logging.getLogger(__name__)


class LineReader:
    """The lines of log.jsonl, newline and all, that come of what the engine sends.

    It sends frames, one for each write that it kept: stream, length, RFC 3339 time, a blank, the bytes.
    Source: Docker Engine API, "Attach to a container", stream format.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._cutters: dict[Stream, LineCutter] = {stream: LineCutter() for stream in _STREAMS.values()}
        self._times: dict[Stream, str] = {}

    def feed(self, chunk: bytes) -> list[bytes]:
        found: list[bytes] = []
        data, at = self._rest + chunk, 0
        while len(data) - at >= _HEADER.size:
            number, length = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + length
            if len(data) < end:
                break
            time, _, said = data[at + _HEADER.size : end].partition(b" ")
            stream = _STREAMS[number]
            self._times[stream] = f"{time[:_MICROSECONDS].decode('ascii')}Z"
            found += self._entries(stream, self._cutters[stream].feed(said))
            at = end
        self._rest = data[at:]
        return found

    def end(self) -> list[bytes]:
        """The last lines, of streams that ended without a newline."""
        return [line for stream in self._times for line in self._entries(stream, self._cutters[stream].end())]

    def _entries(self, stream: Stream, cut: list[tuple[str, bool]]) -> list[bytes]:
        return [entry.encode() for entry in entries(self._times[stream], stream, cut)]


class LogCopier(threading.Thread):
    """Copies one container's log to `directory`/log.jsonl while it grows; done.json says that it is whole.

    `is_over` answers whether the container has ended or is gone, or raises EngineError where that is not
    known now. Ends with the container, or by `close`; then another one may go on.
    """

    def __init__(
        self, engine: Engine, container: str, directory: Path, is_over: Callable[[], bool], quota: int = 0
    ) -> None:
        super().__init__(name=f"log of {container[:12]}", daemon=True)
        self._engine = engine
        self._container = container
        self._directory = directory
        self._is_over = is_over
        self._quota = quota
        self._closing = threading.Event()
        self._stream: LogStream | None = None

    def run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                self._copy(follow=True)
                if self._is_over():
                    self._copy(follow=False)  # some engines end a followed log before its last lines
                    if not self._closing.is_set():
                        write_json(self._directory / "done.json", {})
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

    def _copy(self, follow: bool) -> None:
        """Append what the engine has and we lack. Once the log is cut: nothing."""
        if (self._directory / CUT).exists():
            return
        self._stream = stream = self._engine.log(self._container, follow)
        if stream is None:
            return
        if self._closing.is_set():  # by someone who did not see this stream
            stream.interrupt()
        reader = LineReader()
        path = self._directory / "log.jsonl"
        known = mend(path)
        with contextlib.closing(stream), path.open("ab", buffering=0) as file:
            copy = _Copy(file, known, _first_line(path), self._quota)
            for chunk in stream:
                copy.append(reader.feed(chunk))
                if copy.is_cut:
                    break
            else:
                if not follow:
                    copy.append(reader.end())
                    copy.end()
        if copy.is_cut:
            write_json(self._directory / CUT, {})


class _Copy:
    """One reading of the engine's copy, from its beginning. `file` is our log, which has `known` lines."""

    def __init__(self, file: BinaryIO, known: int, first: bytes, quota: int) -> None:
        self._file = file
        self._known = known  # of these, so many are still to come
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
        new, self._known = lines[self._known :], max(0, self._known - len(lines))
        if self._quota:
            kept = fitting([len(line) for line in new], self._quota - self._size)
            self.is_cut, new = kept < len(new), new[:kept]
        if new:
            data = b"".join(new)
            self._size += len(data)
            _write(self._file, data)

    def end(self) -> None:
        """There is no more: was that all that we had?"""
        self.is_cut |= bool(self._quota and self._known)


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline()
    except FileNotFoundError:
        return b""


def _write(file: BinaryIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]
