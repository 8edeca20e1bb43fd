"""Makes an index whole again from what is left of it and from the streams' files.

Records that are right stay where they are, so the cursors before and after what was damaged keep their meaning. A line
says its own cursor, so that it gets it back; where lines cannot (the first version wrote none), they are put between
their neighbours, by their time. What nobody can tell any more gets a record of nobody, which keeps the place.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from trainyard_server.storage.logs.codec import decode
from trainyard_server.storage.logs.index import (
    INDEX,
    LOST,
    SIZE,
    Record,
    Stream,
    cut_to,
    packed,
    records,
    write_at,
)

_CREDIBLE = 64
_LONGEST = 64 * 2**20

_Place = tuple[Stream, int, int]
"""Where a line lies: whose file, offset, length."""


class Known(Protocol):
    """How far a stream's records are known to be right."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(slots=True)
class _Piece:
    """One line in a stream's file that has no record: where it is, and what it says of itself."""

    offset: int
    length: int
    after: int  # the cursor of the line before it in its stream
    before: int | None  # the cursor of the one that follows and has a record
    cursor: int | None
    time: str


def rebuild(
    directory: Path, total: int, positions: Mapping[Stream, Known], sizes: Mapping[Stream, int]
) -> int:
    """Writes the index anew from the record after `total` on; those before it are right. `sizes`: of the streams'
    files. Answers with how many places nobody's line is at now. To be called under the lock."""
    index = directory / INDEX
    found = _right(directory, records(index, total), total, positions, sizes)
    slots: dict[int, _Place] = {
        cursor: (stream, offset, length) for stream, kept in found.items() for cursor, offset, length in kept
    }
    loose: dict[Stream, deque[_Piece]] = {}
    for stream in sorted(sizes.keys() | found.keys()):
        known = positions.get(stream)
        begins = (known.count, known.size) if known is not None else (0, 0)
        path = directory / stream.filename
        if pieces := _pieces(path, begins, found.get(stream, []), total, sizes.get(stream, 0)):
            loose[stream] = deque(pieces)
    # A line that claims a cursor far beyond all that there is was damaged just there.
    limit = max(slots, default=total) + _CREDIBLE * sum(map(len, loose.values()))
    for stream, queue in loose.items():
        unplaced = deque[_Piece]()
        for piece in queue:
            if piece.cursor is not None and total < piece.cursor <= limit and piece.cursor not in slots:
                slots[piece.cursor] = (stream, piece.offset, piece.length)
            else:
                unplaced.append(piece)
        loose[stream] = unplaced
    _place(slots, {stream: queue for stream, queue in loose.items() if queue}, total)
    last = max(slots, default=total)
    data, lost = bytearray(), 0
    for place in _in_order(slots, total, last):
        data += packed(*place)
        lost += place[0] == LOST
    if data:
        write_at(index, total * SIZE, data)
    cut_to(index, last * SIZE)
    return lost


def _right(
    directory: Path,
    rest: Iterable[Record],
    total: int,
    positions: Mapping[Stream, Known],
    sizes: Mapping[Stream, int],
) -> dict[Stream, list[tuple[int, int, int]]]:
    """Of these records those that are right, by stream: cursor, offset, length, in their order.

    Right is what continues its stream and has the right check, or points to a line that says so itself. Where
    the file ends before it, only the check can be asked.
    """
    found: dict[Stream, list[tuple[int, int, int]]] = {}
    for cursor, (stream, offset, length, sure) in enumerate(rest, total + 1):
        if stream is None or stream == LOST:
            continue
        known = positions.get(stream)
        begin = known.size if known is not None else 0
        if stream in found:
            begin = sum(found[stream][-1][1:])
        if offset < begin:
            continue
        if offset + length > sizes.get(stream, 0):
            right = sure and length <= _LONGEST and offset - begin <= _LONGEST
        elif sure and offset == begin:
            right = True
        else:
            line = _line_at(directory / stream.filename, offset, length)
            right = line is not None and line.get("c", cursor) == cursor
        if right:
            found.setdefault(stream, []).append((cursor, offset, length))
    return found


def _line_at(path: Path, offset: int, length: int) -> dict[str, Any] | None:
    return decode(_bytes(path, offset, length))


def _bytes(path: Path, offset: int, length: int) -> bytes:
    """What can be read there: nothing of a file that is missing, or on a bad sector."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError:
        return b""


def _pieces(
    path: Path, begins: tuple[int, int], kept: list[tuple[int, int, int]], total: int, size: int
) -> list[_Piece]:
    """The lines of one stream that have no record. After the last record only what ends with a whole line counts."""
    pieces: list[_Piece] = []
    number, at = begins
    after = total
    for cursor, offset, length in kept:
        if offset > at:
            follower = _line_at(path, offset, length)
            wanted = follower["n"] - number if follower is not None else None
            gap = _bytes(path, at, offset - at).ljust(offset - at, b"\0")
            lines = _split(gap, wanted)
            pieces += [_piece(at + begin, raw, after, cursor) for begin, raw in lines]
            number += len(lines)
        number, at, after = number + 1, offset + length, cursor
    if size > at:
        with path.open("rb") as file:
            file.seek(at)
            tail = []
            for raw in file:
                tail.append(_piece(at, raw, after, None))
                at += len(raw)
        while tail and not tail[-1].time:
            tail.pop()
        pieces += tail
    return pieces


def _split(data: bytes, wanted: int | None) -> list[tuple[int, bytes]]:
    """The lines in a gap, each with where it begins: `wanted` of them where that is known, else as many as there
    seem to be."""
    lines = data.split(b"\n")
    lines = [*(line + b"\n" for line in lines[:-1]), *filter(None, lines[-1:])]
    if wanted is not None and 0 < wanted <= len(data):
        if len(lines) > wanted:
            lines = [*lines[: wanted - 1], b"".join(lines[wanted - 1 :])]
        while len(lines) < wanted:
            longest = max(range(len(lines)), key=lambda at: len(lines[at]))
            lines[longest : longest + 1] = [lines[longest][:-1], lines[longest][-1:]]
    begins = accumulate(map(len, lines), initial=0)
    return list(zip(begins, lines, strict=False))


def _piece(offset: int, raw: bytes, after: int, before: int | None) -> _Piece:
    line = decode(raw) or {}
    cursor = line.get("c")
    return _Piece(
        offset, len(raw), after, before, cursor if isinstance(cursor, int) else None, line.get("time", "")
    )


def _place(slots: dict[int, _Place], loose: dict[Stream, deque[_Piece]], total: int) -> None:
    """Gives every line that is left a free cursor: one after the line before it, the most urgent first."""
    cursor = total
    while loose:
        cursor += 1
        if cursor in slots:
            continue
        ready = [
            (queue[0].before or float("inf"), queue[0].time, stream)
            for stream, queue in loose.items()
            if queue[0].after < cursor
        ]
        if not ready:
            continue
        stream = min(ready)[2]
        piece = loose[stream].popleft()
        slots[cursor] = (stream, piece.offset, piece.length)
        if not loose[stream]:
            del loose[stream]


def _in_order(slots: Mapping[int, _Place], total: int, last: int) -> Iterable[_Place]:
    """The lines of all cursors, those of each stream in the order of the stream."""
    lines: defaultdict[Stream, list[tuple[int, int]]] = defaultdict(list)
    for stream, offset, length in slots.values():
        lines[stream].append((offset, length))
    turns = {stream: deque(sorted(places)) for stream, places in lines.items()}
    for cursor in range(total + 1, last + 1):
        if cursor not in slots:
            yield LOST, 0, 0
        else:
            stream = slots[cursor][0]
            yield stream, *turns[stream].popleft()
