"""Room on the disks that an agent writes to, looked at in threads of its own: a file server that is away hangs.

Each look writes and removes a nameless file. Only that shows a disk that is read-only, broken, or over a quota.
"""

import errno
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.host import disk
from trainyard_protocol.fields import sized
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import Disk, no_room
from trainyard_protocol.wire.sync import NO_ROOM_AT_END, ReplicaReport

EVERY_S = 5.0
"""Seconds between two looks."""

PATIENCE_S = 2.0
"""A caller of `look` waits so long for a disk that hangs."""

_DEAD_S = 20.0  # without an answer
_ROOM_AGAIN = 1.2  # of the reserve, so that a disk near it does not change from look to look
_SEEN_CHANGE, _SMALL_CHANGE = 0.1, 10**6  # of the free bytes
_BLOCK = b"\0" * 4096
_NOT_OURS = (errno.EACCES, errno.EPERM)  # the parent of a job-dir may be another user's
_MAY_BE_WHY = (Reason.PROGRAM_ERROR, Reason.KILLED_BY_SIGNAL, Reason.VANISHED, Reason.START_FAILED)

_log = logging.getLogger(__name__)


class DiskWatch:
    """The disks of `places`, and of directories that a run failed of. Runs start while each has more than `reserve`
    bytes. Thread-safe."""

    def __init__(self, places: Iterable[Path] = (), reserve: int = 0) -> None:
        self._reserve = reserve
        self._places = {path: _Place(path, reserve) for path in places}
        self._suspects: dict[Path, _Place] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.disks: tuple[Disk, ...] = ()
        """The disks at the last look; replaced as a whole."""

    @property
    def no_room(self) -> str:
        return no_room(self.disks)

    def look(self, suspect: Path | None = None) -> str:
        """Look at every disk now, and at that of `suspect`, which is watched until it has room. Returns which has none,
        and why; "" if all have."""
        with self._lock:
            before = self.no_room
            if suspect is not None and suspect not in self._places:
                self._suspects.setdefault(suspect, _Place(suspect, self._reserve))
            places = [*self._places.values(), *self._suspects.values()]
            pending = [place.begin() for place in places]
            give_up_at = time.monotonic() + PATIENCE_S
            for thread in pending:
                thread.join(max(0.0, give_up_at - time.monotonic()))
            disks = [place.disk() for place in self._places.values()]
            suspects = {path: (place, place.disk()) for path, place in self._suspects.items()}
            self._suspects = {path: place for path, (place, state) in suspects.items() if state.problem}
            self.disks = (*disks, *(state for _, state in suspects.values() if state.problem))
            after = self.no_room
        if after != before:
            _log.warning("%s", f"no run starts here: {after}" if after else "all disks have room again")
        return after

    def start(self) -> None:
        """Look now and again, until `close`."""
        self.look()
        threading.Thread(target=self._repeat, name="disk-watch", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _repeat(self) -> None:
        while not self._closed.wait(EVERY_S):
            self.look()


class ExitNotes:
    """State of the disks when a replica ended: a full one may be why its program failed."""

    def __init__(self, watch: DiskWatch) -> None:
        self._watch = watch
        self._notes: dict[tuple[str, str], str] = {}

    def are_missing(self, run_id: str, replicas: Iterable[ReplicaReport]) -> bool:
        """Whether a replica has ended since the last `note`."""
        return any((run_id, replica.task) not in self._notes for replica in replicas if _may_be_why(replica))

    def note(self, run_id: str, replicas: Iterable[ReplicaReport], problem: str) -> None:
        for replica in filter(_may_be_why, replicas):
            self._notes.setdefault((run_id, replica.task), problem)

    def annotate(self, run_id: str, replicas: Sequence[ReplicaReport]) -> tuple[ReplicaReport, ...]:
        """The reports with the notes in the messages of their exits."""
        return tuple(_with_note(replica, self._notes.get((run_id, replica.task), "")) for replica in replicas)

    def forget(self, run_id: str) -> None:
        self._notes = {key: note for key, note in self._notes.items() if key[0] != run_id}


def _may_be_why(replica: ReplicaReport) -> bool:
    return replica.exit is not None and replica.exit.reason in _MAY_BE_WHY


def _with_note(replica: ReplicaReport, note: str) -> ReplicaReport:
    if not note or replica.exit is None:
        return replica
    message = f"{replica.exit.message} {NO_ROOM_AT_END}{note}, which may be why.".lstrip()
    return replica.model_copy(update={"exit": replica.exit.model_copy(update={"message": message})})


@dataclass(frozen=True, slots=True)
class _Room:
    free_bytes: int = 0
    problem: str = ""


class _Place:
    """One directory. At most one thread at a time looks at it."""

    def __init__(self, path: Path, reserve: int) -> None:
        self._path = path
        self._reserve = reserve
        self._room = _Room()
        self._thread: threading.Thread | None = None
        self._begun_at = 0.0
        self._reported = 0

    def begin(self) -> threading.Thread:
        """The thread that looks, which may be one that still hangs."""
        if self._thread is None or not self._thread.is_alive():
            self._begun_at = time.monotonic()
            self._thread = threading.Thread(target=self._look, name=f"disk {self._path}", daemon=True)
            self._thread.start()
        return self._thread

    def disk(self) -> Disk:
        room, hangs = self._room, self._thread is not None and self._thread.is_alive()
        if hangs and time.monotonic() - self._begun_at > _DEAD_S:
            return Disk(path=str(self._path), free_bytes=self._reported, problem="does not answer")
        if abs(room.free_bytes - self._reported) > max(_SEEN_CHANGE * self._reported, _SMALL_CHANGE):
            self._reported = room.free_bytes
        problem = f"{room.problem}, {sized(self._reported)} are free" if room.problem else ""
        return Disk(path=str(self._path), free_bytes=self._reported, problem=problem)

    def _look(self) -> None:
        try:
            self._room = self._measure()
        except OSError as error:
            self._room = _Room(problem=f"cannot be used ({error.strerror})")

    def _measure(self) -> _Room:
        """Raises OSError."""
        directory = disk.nearest(self._path)
        status = os.statvfs(directory)
        free = status.f_bavail * status.f_frsize
        problem = _write_problem(directory)
        if problem:
            return _Room(free, problem)
        if status.f_files and not status.f_favail:
            return _Room(free, "has no free inode left: no file can be created")
        reserve = disk.reserve_of(self._reserve, status.f_blocks * status.f_frsize)
        least = reserve * (_ROOM_AGAIN if self._room.problem else 1)
        return _Room(free, f"has less than {sized(reserve)} left" if free < least else "")


def _write_problem(directory: Path) -> str:
    """The reason why nothing can be written there; "" if it can, or if this user may not."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.write(_BLOCK)
    except OSError as error:
        if error.errno in _NOT_OURS:
            return ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"is full ({error.strerror})"
        return f"cannot be written ({error.strerror})"
    return ""
