"""Time series of the replicas' resource usage, in files shared by several processes.

`<data_dir>/usage/<project>/<job>/<run>.<task>` has the records of one replica, appended under the lock of the job
(`lock`, flock). A file at the limit is downsampled into a new one that replaces it. Readers take no lock. The next
writer overwrites an incomplete record.

Writes do not wait for the disk: no decision depends on these measurements.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock

from trainyard_server.storage.files import job_directory, locked, remove_directory, write_at
from trainyard_server.storage.streams import Stream
from trainyard_server.storage.usage.records import UsagePoint, packed, size_of, thinned, unpacked

_WAIT_S = 2.0  # for another writer
_CACHE_SIZE = 256  # series


class UsageStore:
    """Keeps at most `most` points of each replica of each run. Safe for several threads and processes."""

    def __init__(self, directory: Path, most: int) -> None:
        self._directory = directory
        self._most = most
        self._lock = Lock()
        self._cache: dict[tuple[Path, int], tuple[tuple[int, int, int] | None, list[UsagePoint]]] = {}

    def add(self, project: str, job_id: str, points: Mapping[Stream, Iterable[UsagePoint]]) -> None:
        """Append points. Raises OSError (also LockTimeout), after which some may be stored."""
        directory = job_directory(self._directory, project, job_id)
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory, _WAIT_S):
            for stream, new_points in points.items():
                for point in new_points:
                    self._append(directory / stream.name.replace("/", "."), point)

    def remove(self, project: str, job_id: str) -> None:
        """Remove all points of a job. Raises OSError (also LockTimeout)."""
        remove_directory(job_directory(self._directory, project, job_id), _WAIT_S)

    def newest(self, project: str, job_id: str, stream: Stream, gpus: int) -> UsagePoint | None:
        """The last point of a replica with that number of GPUs, or None."""
        size = size_of(gpus)
        try:
            with self._file(project, job_id, stream).open("rb") as file:
                whole = file.seek(0, os.SEEK_END) // size
                # A few more: the last may be damaged.
                file.seek(max(0, whole - 3) * size)
                return next(reversed(list(unpacked(file.read(), gpus))), None)
        except FileNotFoundError:
            return None

    def series(self, project: str, job_id: str, stream: Stream, gpus: int, most: int) -> list[UsagePoint]:
        """At most `most` points of a replica, oldest first."""
        path = self._file(project, job_id, stream)
        try:
            now = path.stat()
            with self._lock:
                cached, points = self._cache.pop((path, most), (None, []))
            version = (now.st_ino, now.st_size, now.st_mtime_ns)
            if cached != version:
                points = thinned(list(unpacked(path.read_bytes(), gpus)), most)
        except FileNotFoundError:
            return []
        # A page polls, usually more often than there are new points.
        with self._lock:
            self._cache[path, most] = (version, points)
            if len(self._cache) > _CACHE_SIZE:
                del self._cache[next(iter(self._cache))]
        return points

    def _append(self, path: Path, point: UsagePoint) -> None:
        raw, gpus = packed(point), len(point.gpus)
        try:
            whole = path.stat().st_size // len(raw)
        except FileNotFoundError:
            whole = 0
        if whole >= self._most:
            whole = self._thin(path, gpus)
        write_at(path, whole * len(raw), raw)

    def _thin(self, path: Path, gpus: int) -> int:
        """Downsample to half of the limit. Returns the number of records."""
        left = thinned(list(unpacked(path.read_bytes(), gpus)), max(2, self._most // 2))
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(b"".join(map(packed, left)))
        new.replace(path)
        return len(left)

    def _file(self, project: str, job_id: str, stream: Stream) -> Path:
        return job_directory(self._directory, project, job_id) / stream.name.replace("/", ".")
