"""What the replicas of all jobs used over time, in files that several processes may write and read at the same time.

`<data_dir>/usage/<project>/<job>/<run>.<task>` holds records of one replica (`usage_points`), appended under the lock
of the job (`lock`, flock). A file that has reached the limit is thinned into another one that takes its place. Readers
take no lock. What a writer that was killed has left half-done is written over by the next one.

These are measurements: nothing here waits for the disk, and losing some loses no decision.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.storage.file_lock import held
from trainyard_server.storage.logs.index import Stream, write_at
from trainyard_server.storage.usage.records import Point, packed, size_of, thinned, unpacked

_WAIT_S = 2.0  # for another writer
_REMEMBERED = 256  # series


class UsageStore:
    """Of each replica of each run no more than `most` points are kept. Safe to use from any thread of any process."""

    def __init__(self, directory: Path, most: int) -> None:
        self._directory = directory
        self._most = most
        self._lock = Lock()
        self._read: dict[tuple[Path, int], tuple[tuple[int, int, int] | None, list[Point]]] = {}

    def add(self, project: str, job_id: str, points: Mapping[Stream, Iterable[Point]]) -> None:
        """Appends. Raises OSError, LogBusy among them: then some of it may be there."""
        directory = self._path(project, job_id)
        directory.mkdir(parents=True, exist_ok=True)
        with held(directory, _WAIT_S):
            for stream, news in points.items():
                for point in news:
                    self._append(directory / stream.name.replace("/", "."), point)

    def newest(self, project: str, job_id: str, stream: Stream, gpus: int) -> Point | None:
        """The last point of a replica with so many devices; None where there is none."""
        size = size_of(gpus)
        try:
            with self._file(project, job_id, stream).open("rb") as file:
                whole = file.seek(0, os.SEEK_END) // size
                # A few more: the last may be damaged.
                file.seek(max(0, whole - 3) * size)
                return next(reversed(list(unpacked(file.read(), gpus))), None)
        except FileNotFoundError:
            return None

    def series(self, project: str, job_id: str, stream: Stream, gpus: int, most: int) -> list[Point]:
        """No more than `most` points of a replica, the oldest first."""
        path = self._file(project, job_id, stream)
        try:
            now = path.stat()
            with self._lock:
                known, found = self._read.pop((path, most), (None, []))
            version = (now.st_ino, now.st_size, now.st_mtime_ns)
            if known != version:
                found = thinned(list(unpacked(path.read_bytes(), gpus)), most)
        except FileNotFoundError:
            return []
        # Who looks at a page asks again and again, mostly before there is anything new.
        with self._lock:
            self._read[path, most] = (version, found)
            if len(self._read) > _REMEMBERED:
                del self._read[next(iter(self._read))]
        return found

    def _append(self, path: Path, point: Point) -> None:
        raw, gpus = packed(point), len(point.gpus)
        try:
            whole = path.stat().st_size // len(raw)
        except FileNotFoundError:
            whole = 0
        if whole >= self._most:
            whole = self._thin(path, gpus)
        write_at(path, whole * len(raw), raw)

    def _thin(self, path: Path, gpus: int) -> int:
        """Half of the limit is free again. How many records there are now."""
        left = thinned(list(unpacked(path.read_bytes(), gpus)), max(2, self._most // 2))
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(b"".join(map(packed, left)))
        new.replace(path)
        return len(left)

    def _file(self, project: str, job_id: str, stream: Stream) -> Path:
        return self._path(project, job_id) / stream.name.replace("/", ".")

    def _path(self, project: str, job_id: str) -> Path:
        for name in (project, job_id):
            if not name or name.startswith(".") or "/" in name or "\0" in name:
                raise InvalidArgument(f"{name!r} cannot name a project or a job.")
        return self._directory / project / job_id
