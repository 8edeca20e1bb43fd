"""Log lines on their way from an agent to the server, and the digests by which both compare a log."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Self

from pydantic import TypeAdapter

from trainyard_protocol.message import Many, Wire

Stream = Literal["stdout", "stderr"]


class LogLine(NamedTuple):
    """One line without its newline. `time` is RFC 3339, when the agent's side read it.

    `partial`: the program's line was longer than the limit and continues in the next one. `overwritten`: a state of a
    progress bar before its last; the next line of the stream replaces it. `routine`: a line of the service that a job's
    state or its end repeats.
    """

    time: str
    stream: Stream
    text: str
    partial: bool = False
    overwritten: bool = False
    routine: bool = False

    @staticmethod
    def parse(value: object) -> "LogLine":
        """The line in a JSON object. Raises ValidationError."""
        return _LINE.validate_python(value)


_LINE = TypeAdapter(LogLine)


class LogBlock(Wire):
    """Lines of one stream with the same time, of one kind. Most lines are written together with others."""

    time: str
    stream: Stream
    texts: Many[str]
    partial: bool = False
    overwritten: bool = False

    @classmethod
    def of(cls, lines: Iterable[LogLine]) -> "tuple[LogBlock, ...]":
        blocks = groupby(lines, itemgetter(0, 1, 3, 4))
        return tuple(
            cls(time=time, stream=stream, texts=tuple(map(itemgetter(2), some)), partial=part, overwritten=over)
            for (time, stream, part, over), some in blocks
        )

    @property
    def lines(self) -> Iterator[LogLine]:
        time, stream, partial, overwritten = self.time, self.stream, self.partial, self.overwritten
        return (LogLine(time, stream, text, partial, overwritten) for text in self.texts)


class LogEnd(Wire):
    """The end of a replica's log: the number of lines, and their digest: `sha256` of them all, "" where the agent has
    not read them all; `chain` as of LogDigest, or "". `cut`: the program wrote more, but the log quota was used
    up; these are the lines that its machine stored. `missing`: lines that its machine lost; None: any number
    of the last ones, since what stored them was killed or removed."""

    count: int
    sha256: str
    cut: bool = False
    chain: str = ""
    missing: int | None = 0


class LogGap(Wire):
    """Times between which lines of a log may be missing: of the lines before and after, "" where there is none."""

    after: str
    before: str


class LogPosition(Wire):
    """The end of a log so far: the number of lines, their `chain`, the time of the last one, and how many of the last
    lines have that time. It is all that an agent needs to go on that has no older lines."""

    next: int = 0
    chain: str = ""
    last_time: str = ""
    same_time: int = 0


class LogChunk(Wire):
    """Lines `start`, `start + 1`, ... of one replica; `end` once there can be no more. `gap`: lines may be missing
    before the first of these. `resume` asks for the position."""

    start: int
    blocks: Many[LogBlock] = ()
    end: LogEnd | None = None
    gap: LogGap | None = None
    resume: bool = False

    @classmethod
    def of(cls, start: int, lines: Iterable[LogLine], **more: Any) -> Self:
        """The chunk of these lines, from number `start` on."""
        return cls(start=start, blocks=LogBlock.of(lines), **more)

    @property
    def lines(self) -> tuple[LogLine, ...]:
        return tuple(chain.from_iterable(block.lines for block in self.blocks))

    @property
    def count(self) -> int:
        """The number of its lines."""
        return sum(len(block.texts) for block in self.blocks)


class LogReceipt(Wire):
    """`next` is the number of lines that the server has, which is the number of the next one. `position` is for a chunk
    that asks for it. `accepts_blocks` is for agents that were started before an upgrade: they send no lines without."""

    next: int
    complete: bool
    position: LogPosition | None = None
    accepts_blocks: Literal[True] = True


class LogDigest:
    """The digest of a log, line by line, and their number.

    `chain` is h(n) = SHA-256(h(n-1), line n) in hex, and "" before the first line: it goes on from any line. It takes
    most of the time: None leaves it out.
    """

    def __init__(self, count: int = 0, chain: str | None = "") -> None:
        self.count = count
        self.chain = chain
        self._sha = hashlib.sha256() if count == 0 else None

    def add(self, stream: Stream, text: str) -> None:
        self.extend(((stream, text),))

    def extend(self, lines: Iterable[tuple[Stream, str]]) -> None:
        """Add lines, as pairs of stream and text."""
        texts = [f"{stream} {text}\n" for stream, text in lines]
        if self.chain is not None:
            for text in texts:
                line = text.encode("utf-8", "surrogatepass")
                self.chain = hashlib.sha256(self.chain.encode() + line).hexdigest()
        if self._sha is not None:
            self._sha.update("".join(texts).encode("utf-8", "surrogatepass"))
        self.count += len(texts)

    def copy(self) -> "LogDigest":
        other = LogDigest(self.count, self.chain)
        other._sha = None if self._sha is None else self._sha.copy()
        return other

    def hexdigest(self) -> str:
        """The digest of all lines; "" if it does not go back to the first."""
        return "" if self._sha is None else self._sha.hexdigest()


def digest(lines: Iterable[LogLine]) -> str:
    """The digest of a whole log: SHA-256 over stream, text and newline of each line in order, in hex."""
    total = LogDigest(chain=None)
    total.extend((line.stream, line.text) for line in lines)
    return total.hexdigest()
