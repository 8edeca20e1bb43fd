"""All that the programs of one job have measured, read from its log and kept in step with it."""

import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock

from trainyard_protocol.progress import Mark, parse
from trainyard_protocol.sync import LogLine
from trainyard_server.domain.metrics.series import LEAST, Curve
from trainyard_server.storage.logs.store import SERVICE, LogStore, Stream

CURVES = 2000
"""Of one job; further metrics are left out."""

POINTS = 2_000_000
"""Of one job, 24 bytes each. When there are more, all its curves are thinned to half."""

_AT_ONCE = 64 * 2**20  # bytes of the log that are read before somebody gets an answer
_EPOCHS = 10_000

Key = tuple[str, Stream]
"""A metric's name, and whose it is."""


class JobCurves:
    """Hold `lock` for everything else. `parsed` reads a line.

    A line that was damaged on the disk is no part of it, also when its agent has sent it again: the next JobCurves
    of the job reads it.
    """

    def __init__(self, project: str, job_id: str, parsed: Callable[[str], Mark | None] = parse) -> None:
        self.lock = Lock()
        self._project = project
        self._job_id = job_id
        self._parsed = parsed
        self._begin()

    def _begin(self) -> None:
        self.curves: dict[Key, Curve] = {}
        self.changed: dict[tuple[str, str], int] = {}
        """By name and task: the `count` at which there was a new point."""
        self.token = uuid.uuid4().hex
        self.count = 0
        """Goes up with all that is new; means nothing under another `token`."""
        self.points = 0
        self.start: float | None = None  # the earliest time of a point, in seconds since 1970
        self.step: int | None = None
        self.steps: int | None = None
        self.epoch: float | None = None
        self.epochs: float | None = None
        self.epoch_starts: dict[int, tuple[int, float]] = {}
        self.complete = True
        self.thinned = False
        self.left_out = False
        self._of: dict[Stream, dict[str, Curve]] = {}  # the same curves, found without a hash of both
        self._touched: dict[Stream, set[str]] = {}
        self._read: dict[Stream, int] = {}
        self._is_new = False
        self._newest = -math.inf
        self._run = 0

    @property
    def version(self) -> str:
        """Another one whenever something is new."""
        return f"{self.token}-{self.count}"

    def catch_up(self, logs: LogStore) -> None:
        """Reads what the log has more by now, or a bounded part of it. Raises OSError."""
        ends = logs.ends(self._project, self._job_id)
        if any(place > ends.get(stream, 0) for stream, place in self._read.items()):
            self._begin()  # the log was repaired: what was read may not be there any more
        self._is_new = bool(self._touched)  # read by an attempt that has met an error
        left = _AT_ONCE
        for stream, end in ends.items():
            place = self._read.get(stream, 0)
            while stream != SERVICE and place < end and left > 0:
                lines, after = logs.objects_from(self._project, self._job_id, stream, place, end)
                for line in lines:
                    self._take(stream, line)
                left -= after - place
                self._read[stream] = place = after
                self.points = sum(map(len, self.curves.values()))
                if self.points > POINTS:
                    self._thin()
        self._note_changes()
        self.count += self._is_new
        self.points = sum(len(curve.points()) for curve in self.curves.values())  # once they are in order
        self.complete = all(
            self._read.get(stream, 0) >= end for stream, end in ends.items() if stream != SERVICE
        )

    def _take(self, stream: Stream, line: LogLine) -> None:
        mark = self._parsed(line.text) if line.stream == "stdout" and not line.partial else None
        if mark is None or mark.step is None:
            return
        try:
            at = datetime.fromisoformat(line.time)
        except ValueError:
            return
        if at.tzinfo is None:
            return
        time = at.timestamp()
        self._is_new = True
        self._note(stream, mark, mark.step, time)
        if not mark.metrics:
            return
        self.start = time if self.start is None else min(self.start, time)
        self._touched.setdefault(stream, set()).update(mark.metrics)
        mine = self._of.setdefault(stream, {})
        for name, value in mark.metrics.items():
            curve = mine.get(name)
            if curve is None:
                if len(self.curves) >= CURVES:
                    self.left_out = True
                    continue
                curve = mine[name] = self.curves[name, stream] = Curve()
            curve.add(mark.step, value, time)

    def _note_changes(self) -> None:
        for stream, names in self._touched.items():
            for name in names & self._of[stream].keys():
                self.changed[name, stream.task] = self.count + 1
        self._touched.clear()

    def _note(self, stream: Stream, mark: Mark, step: int, time: float) -> None:
        """Where the newest run is, by its newest lines."""
        if stream.run > self._run:
            self._run, self._newest, self.step = stream.run, -math.inf, None
        if stream.run == self._run:
            self.step = step if self.step is None else max(self.step, step)
            if time >= self._newest:
                self._newest = time
                self.steps = self.steps if mark.steps is None else mark.steps
                self.epoch = self.epoch if mark.epoch is None else mark.epoch
                self.epochs = self.epochs if mark.epochs is None else mark.epochs
        if mark.epoch is not None:
            number = int(mark.epoch)
            known = self.epoch_starts.get(number)
            if known is None and len(self.epoch_starts) >= _EPOCHS:
                return
            if known is None or step < known[0]:
                self.epoch_starts[number] = (step, mark.epoch)

    def _thin(self) -> None:
        for curve in self.curves.values():
            curve.thin(max(LEAST, len(curve) // 2))
        self.points = sum(map(len, self.curves.values()))
        self.changed = dict.fromkeys(self.changed, self.count + 1)
        self.thinned = True


def moment(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)
