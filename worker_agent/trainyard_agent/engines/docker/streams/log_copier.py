"""Copies a container's output from the engine to our numbered lines.

The engine keeps every byte in order, for as long as the container exists. So after any failure a log is continued by
reading the engine's copy from its beginning and skipping the lines that we have. With a quota the engine keeps less:
once it has dropped its beginning (a log with many overwritten lines) ours cannot be continued, and is cut there.
"""

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trainyard_agent.engines.docker.client import DockerClient, EngineError, LogStream
from trainyard_agent.runtimes.log_copier import LogCopier
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.supervisor import LineSplitter, entries
from trainyard_protocol.wire.logs import Stream

_HEADER = struct.Struct(">BxxxL")
_STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
_MICROSECONDS = 26  # characters of a time up to microseconds
REMOVED = {"container": "removed"}
"""The note at the end of a log, in done.json, that may lack its last lines."""


class LineReader:
    """Translates the engine's log stream into the lines of log.jsonl, with newlines.

    A frame is one write: stream, length, RFC 3339 time, a blank, the bytes.
    Source: Docker Engine API, "Attach to a container", stream format.
    """

    def __init__(self, mask: Mask | None = None) -> None:
        self._rest = b""
        self._splitters: dict[Stream, LineSplitter] = {stream: LineSplitter(mask=mask) for stream in _STREAMS.values()}
        self._times: dict[Stream, str] = {}

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that are complete. Raises EngineError where the engine writes an error of its own (stream 3)."""
        lines: list[str] = []
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

    def end(self) -> list[str]:
        """The last lines of streams that ended without a newline."""
        return [line for stream in self._times for line in self._entries(stream, self._splitters[stream].end())]

    def _entries(self, stream: Stream, lines: list[tuple[str, int]]) -> list[str]:
        return entries(self._times[stream], stream, lines)


class ContainerLogCopier(LogCopier):
    """Copies one container's log.

    `has_ended` returns whether the container has ended or was removed, or raises EngineError if that is unknown.
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
        super().__init__(f"container {container[:12]}", directory, secrets, quota)
        self._engine = engine
        self._container = container
        self._has_ended = has_ended
        self._stream: LogStream | None = None

    def close(self) -> None:
        super().close()
        stream = self._stream
        if stream is not None:
            stream.interrupt()
        if self.is_alive():
            self.join()

    def _round(self, mask: Mask) -> Mapping[str, object] | None:
        self._copy(mask, follow=True)
        if not self._has_ended():
            return None
        # Some engines close a followed log before its last lines.
        return {"lines": self._count} if self._copy(mask, follow=False) else REMOVED

    def _copy(self, mask: Mask, follow: bool) -> bool:
        """Append the lines that we lack, unless the log is cut. False if the container is gone, with its log."""
        if self._is_cut():
            return True
        self._stream = stream = self._engine.log(self._container, follow)
        if stream is None:
            return False
        if self._closing.is_set():  # `close` did not see this stream
            stream.interrupt()
        to_skip, first = self._count, ""
        if self._quota and self._count:
            with self._path.open(encoding="ascii", errors="replace", newline="") as file:
                first = file.readline()
        with contextlib.closing(stream):
            for lines in _lines(stream, LineReader(mask), is_whole=not follow):
                if first and lines[0] != first:  # the engine has dropped its beginning
                    self._cut()
                    return True
                first = ""
                new, to_skip = lines[to_skip:], max(0, to_skip - len(lines))
                if self._append(new) < len(new):
                    return True
        if to_skip and self._quota and not follow:  # the engine has less than we have
            self._cut()
        return True


def _lines(stream: LogStream, reader: LineReader, is_whole: bool) -> Iterator[list[str]]:
    """The lines as they come, some at a time; of a stream that is whole also a last one without a newline."""
    for chunk in stream:
        if lines := reader.feed(chunk):
            yield lines
    if is_whole and (lines := reader.end()):
        yield lines
