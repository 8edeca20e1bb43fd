"""Copies of the pods' logs: each is followed by a thread, into log.jsonl in the agent's state directory.

The API has one stream, as stdout, with a time for each line but no position: after a broken connection reading goes on
a second before the last line, and what is there already is passed over. All times here are in UTC.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeRefused, LogQuiet
from trainyard_agent.engines.kubernetes.pods.objects import CONTAINER
from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.runtimes.log_copier import LogCopier
from trainyard_agent.runtimes.log_file import LogFile
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.supervisor import LineSplitter, entries
from trainyard_protocol.wire.logs import LogPosition

GAPS = "gaps.json"

_QUIET_S = 5.0
"""A followed log that is quiet for so long is opened again: older kubelets go on with the file before a rotation."""

_SILENT_S, _SILENT_ROUNDS = 30.0, 12
"""A log that was opened so often without a new line is opened less often: nothing is there to be rotated."""

_REFUSED_S = 60.0
"""How long reading the end of a log may be refused, while its kubelet is away, before it is given up."""

_NO_CONTAINER = (400, 404)  # its kubelet, or the API server, has none any more
_ROTATION_S = 10.0
"""Between two rotations of a log, at least."""

_AT_ONCE_S = 1.0
"""A log that is opened again so soon has lost nothing: in between it was rotated once at most."""

_PIECE = 1 << 14
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d) ")
_TAIL = 10_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogSource:
    """A log to copy. `phase`: whether its container has begun, and whether it has ended. `values` are masked. `quota`
    limits the copy, in bytes; 0: no limit. `started`: when its container was started; "": not known."""

    pod: str
    phase: Callable[[], tuple[bool, bool]]
    values: Callable[[], list[str]]
    quota: int = 0
    started: Callable[[], str] = lambda: ""


class LogFollower(LogCopier):
    """Copies one log."""

    pause_s = longest_pause_s = 0.2

    def __init__(self, client: KubeClient, source: LogSource, directory: Path, begin: LogPosition) -> None:
        """`begin`: the position before the first line to copy."""
        super().__init__(f"pod {source.pod}", directory, source.values, source.quota)
        self._client, self._source, self._begin = client, source, begin
        self._window = _Window([begin.last_time] * begin.same_time if begin.next else [])
        self._is_resumed = begin.next > 0
        self._has_begun = begin.next > 0
        """The container; its pod may say so no more once it is removed."""
        self._is_whole = False
        self._quiet_rounds = 0
        self._refused_at: float | None = None
        self._read_until = -_AT_ONCE_S

    def _round(self, mask: Mask) -> Mapping[str, object] | None:
        begun, ended = self._source.phase()
        self._has_begun |= begun
        if self._has_begun and not self._is_cut():
            try:
                self._is_whole = self._copy(mask, follow=not ended)
                self._refused_at, self._read_until = None, time.monotonic()
            except LogQuiet:
                self._is_whole, self._read_until = False, time.monotonic()
                self._quiet_rounds += 1
            except KubeRefused as refused:
                if not ended or not self._is_final(refused):
                    raise
                self._lose_end(str(refused))
        return {"lines": self._count} if ended else None

    def _is_final(self, refused: KubeRefused) -> bool:
        """Whether the end of a log cannot be read, also later."""
        self._refused_at = self._refused_at or time.monotonic()
        return refused.status in _NO_CONTAINER or time.monotonic() - self._refused_at > _REFUSED_S

    def _read_position(self) -> None:
        super()._read_position()
        count, wanted = self._count, _TAIL
        self._has_begun |= count > 0
        self._is_resumed &= not count
        log = LogFile(self._path)
        while count:
            times = [line.time for line in log.read(max(0, count - wanted), wanted, 1 << 40)]
            self._window = _Window(times)
            if len(self._window.times) < wanted or wanted >= count:
                return
            wanted *= 10

    def _copy(self, mask: Mask, follow: bool) -> bool:
        """Copy from the beginning of the window on, without what is in it. Returns whether all that came was copied: a
        stream may end in order within a line, when its kubelet dies, and that line comes again."""
        splitter, is_known = LineSplitter(mask=mask), self._known()
        is_silent = self._quiet_rounds >= _SILENT_ROUNDS
        quiet_s = _SILENT_S if is_silent else _QUIET_S
        chunks = self._client.log(self._source.pod, CONTAINER, self._window.since, quiet_s if follow else None)
        stamp = ""
        for batch, is_ended in _raw_lines(chunks):
            if self._closing.is_set() or (follow and not is_ended):
                return False
            new: list[tuple[str, str]] = []
            for raw in batch:
                if not _TIME.match(raw):
                    self._lose_end(raw[:200].decode("utf-8", "replace"))
                    continue
                stamp, text = _parsed(raw)
                parsed = entries(stamp, "stdout", splitter.feed(text + b"\n"))
                new += [(stamp, entry) for entry in parsed if not is_known(stamp)]
            if not self._add(new):
                return True
            if follow and is_silent and not self._quiet_rounds:
                return False  # it is silent no more
        rest = entries(stamp, "stdout", splitter.end())
        self._add([(stamp, entry) for entry in rest if not is_known(stamp)])
        return True

    def _lose_end(self, message: str) -> None:
        """The kubelet has no log any more: it removes containers of deleted pods. What was followed to its end is
        whole."""
        if not self._is_whole:
            _log.warning("the end of the log of pod %s cannot be read: %s", self._source.pod, message)
            self._gap(max(self._window.times, default=self._begin.last_time), "")

    def _lose_copy(self) -> None:
        """Remove the rest: another copy is begun behind what the server has."""
        remove_tree(self._directory)

    def _known(self) -> Callable[[str], bool]:
        if self._is_resumed:
            return _behind(self._begin, self._gap)
        if time.monotonic() - self._read_until < _AT_ONCE_S:
            return self._window.reader(lambda _after, _before: None)
        if not self._window.times:
            return _from_start(self._source.started(), self._gap)
        return self._window.reader(self._gap)

    def _gap(self, after: str, before: str) -> None:
        """Keep that lines may be missing before the next one."""
        gaps = read_json(self._directory / GAPS) or {}
        write_json(self._directory / GAPS, {**gaps, str(self._count): {"after": after, "before": before}})

    def _add(self, new: list[tuple[str, str]]) -> bool:
        """False if the quota is reached."""
        count = self._append([entry for _, entry in new])
        if count:
            self._is_resumed = False
            self._quiet_rounds = 0
            self._window.add([time for time, _ in new[:count]])
        return count == len(new)


class _Window:
    """The last lines of a log that were copied, by their times, from a whole second on.

    Times are not in order where a program writes to two streams at once, so the window is a second longer than the one
    of the last line.
    """

    def __init__(self, times: list[str]) -> None:
        self.times: list[str] = []
        self.since = ""
        self.add(times)

    def add(self, times: list[str]) -> None:
        if not times:
            return
        self.times += times
        since = _before(max(times[-1], self.since))
        if since > self.since:
            self.since = since
            self.times = [time for time in self.times if time >= since]

    def reader(self, gap: Callable[[str, str], None]) -> Callable[[str], bool]:
        """Called with the time of each line from `since` on: whether it was copied. Where the first ones are gone,
        after a rotation, lines are passed over by their time alone, and there may be a `gap`."""
        expected = iter(list(self.times))
        last = max(self.times, default="")
        is_whole = True

        def is_known(time: str) -> bool:
            nonlocal is_whole
            if is_whole:
                following = next(expected, None)
                if following is None or following == time:
                    return following is not None
                is_whole = False
                if time > last:
                    gap(last, time)
            return time <= last

        return is_known


def _from_start(started: str, gap: Callable[[str, str], None]) -> Callable[[str], bool]:
    """Reader of a log that was never read, in a window. There may be a gap where the first line is so late that the
    log could have been rotated before it."""
    is_first = bool(started)

    def is_known(time: str) -> bool:
        nonlocal is_first
        if is_first and datetime.fromisoformat(time) - datetime.fromisoformat(started) > timedelta(seconds=_ROTATION_S):
            gap(utc_time(started), time)
        is_first = False
        return False

    return is_known


def _behind(position: LogPosition, gap: Callable[[str, str], None]) -> Callable[[str], bool]:
    """Reader in a window, with nothing known but the position."""
    left, is_reported = position.same_time, False

    def is_known(time: str) -> bool:
        nonlocal left, is_reported
        if time > position.last_time and left and not is_reported:
            is_reported = True
            gap(position.last_time, time)
        if time == position.last_time and left:
            left -= 1
            return True
        return time < position.last_time

    return is_known


def _before(time: str) -> str:
    """The whole second that is one before this time."""
    return (datetime.fromisoformat(time[:19]) - timedelta(seconds=1)).isoformat() + "Z"


def _raw_lines(chunks: Iterator[bytes]) -> Iterator[tuple[list[bytes], bool]]:
    """Lines, as they come, and whether they are whole. What is left without a newline is the last one of a log; where
    reading broke off, it comes again."""
    rest: list[bytes] = []
    for chunk in chunks:
        first, newline, more = chunk.partition(b"\n")
        rest.append(first)
        if newline:
            *lines, last = (b"".join(rest) + newline + more).split(b"\n")
            rest = [last]
            yield lines, True
    if any(rest):
        yield [b"".join(rest)], False


def _parsed(raw: bytes) -> tuple[str, bytes]:
    """The time, in microseconds, and the text. Kubelets before 1.29 put a time before each 16 KiB of a long line."""
    stamp, _, text = raw.partition(b" ")
    if len(text) > _PIECE:
        pieces = []
        while len(text) > _PIECE and (match := _TIME.match(text, _PIECE)):
            pieces.append(text[:_PIECE])
            text = text[match.end() :]
        text = b"".join([*pieces, text])
    return utc_time(stamp.decode("ascii")), text


def line_time(raw: bytes) -> str:
    """The time of a line of the API, in UTC and microseconds; "" if it has none, as the words of a kubelet."""
    stamp = _TIME.match(raw)
    return utc_time(stamp[0].decode("ascii").rstrip()) if stamp else ""


def utc_time(stamp: str) -> str:
    """The time in UTC and microseconds. A runtime of containers stamps lines in its node's zone, with the offset: as
    text, these do not compare with each other, nor with what the agent and the server keep."""
    time = datetime.fromisoformat(stamp).astimezone(UTC)
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")
