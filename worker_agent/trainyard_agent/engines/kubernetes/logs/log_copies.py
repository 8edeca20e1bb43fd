"""The copies of all logs in the agent's state directory, by run and task.

A copy begins at line 0, or where the server's lines end: an agent whose directory is gone goes on from there. What the
cluster may have dropped in between is a gap, which is kept beside the lines.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.engines.kubernetes.api.client import KubeClient
from trainyard_agent.engines.kubernetes.logs.logs import GAPS, LogFollower, LogSource
from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.runtimes.base import LogSlice
from trainyard_agent.runtimes.log_file import DONE, LOG, LogFile
from trainyard_protocol.wire.logs import LogGap, LogPosition

_BEGINNING = LogPosition()
_BEGUN = "begun.json"

Key = tuple[str, str]


@dataclass(slots=True)
class _Copy:
    position: LogPosition
    """Where the copy begins."""
    directory: Path
    log: LogFile
    source: LogSource
    follower: LogFollower


class LogCopies:
    """Thread-safe."""

    def __init__(self, client: KubeClient, directory: Path) -> None:
        self._client, self._directory = client, directory
        self._lock = threading.RLock()
        self._copies: dict[Key, _Copy] = {}

    def close(self) -> None:
        with self._lock:
            for copy in self._copies.values():
                copy.follower.close()

    def follow(self, key: Key, source: LogSource) -> None:
        """Begin to copy, or go on where a former agent ended. Twice: nothing."""
        with self._lock:
            if key in self._copies:
                return
            begun = read_json(self._directory.joinpath(*key, _BEGUN))
            self._begin(key, source, LogPosition.model_validate(begun or {}))

    def read(self, key: Key, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        """Read lines: see `Runtime.read_log`. A slice begins at each gap. Raises FileNotFoundError for a copy that
        somebody has removed: `resume` begins another one."""
        with self._lock:
            copy = self._copies[key]
        if not copy.directory.is_dir():
            raise FileNotFoundError(2, "the copy of the log was removed, and is made again", str(copy.directory))
        first = copy.position.next
        if start < first:
            return LogSlice((), complete=False)
        gaps = _gaps(copy.directory)
        until = min((number for number in gaps if number + first > start), default=None)
        if until is not None:
            max_lines = min(max_lines, until + first - start)
        part = copy.log.slice(start - first, max_lines, max_bytes, copy.directory / DONE)
        if _gaps(copy.directory) != gaps:  # written before the lines behind it, which may have come since
            return self.read(key, start, max_lines, max_bytes)
        gap = gaps.get(start - first) if part.lines or part.complete else None
        return part if gap is None else LogSlice(part.lines, part.complete, part.cut, gap)

    def resume(self, key: Key, position: LogPosition) -> None:
        """Number the lines behind this position from `position.next` on."""
        with self._lock:
            copy = self._copies[key]
            is_there = copy.directory.is_dir()
            if is_there and (position.next == copy.position.next == 0 or _has(copy, position)):
                return
            copy.follower.close()
            write_json(self._directory.joinpath(*key, _BEGUN), position.model_dump())
            self._begin(key, copy.source, position)

    def keep(self, run_ids: Collection[str]) -> None:
        """Remove what an agent left that was killed while it removed a run: the directories of all other runs."""
        left = self._directory.iterdir() if self._directory.is_dir() else ()
        for path in [path for path in left if path.name not in run_ids]:
            remove_tree(path)

    def remove(self, run_id: str) -> None:
        with self._lock:
            for key in [key for key in self._copies if key[0] == run_id]:
                self._copies.pop(key).follower.close()
        remove_tree(self._directory / run_id)

    def _begin(self, key: Key, source: LogSource, position: LogPosition) -> None:
        directory = self._directory.joinpath(*key, f"from-{position.next}")
        directory.mkdir(parents=True, exist_ok=True)
        follower = LogFollower(self._client, source, directory, position)
        self._copies[key] = _Copy(position, directory, LogFile(directory / LOG), source, follower)
        if not (directory / DONE).exists():
            follower.start()


def _has(copy: _Copy, position: LogPosition) -> bool:
    """Whether the copy has the line before the position, or begins there."""
    number = position.next - copy.position.next
    if number == 0:
        return True
    lines = copy.log.read(number - 1, 1, 0) if number > 0 else ()
    return bool(lines) and lines[0].time == position.last_time


def _gaps(directory: Path) -> dict[int, LogGap]:
    """Gaps by the index of the line after each."""
    gaps = read_json(directory / GAPS) or {}
    return {int(number): LogGap.model_validate(gap) for number, gap in gaps.items()}
