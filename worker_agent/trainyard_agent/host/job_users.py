"""Users for jobs: where the agent is root, each run has a user id of its own, which no other run and no person has.

`users/RUN.json` of the state directory has the id of a run, from before its first file to after its last one: a run
keeps its user as long as it has a directory. Then everything of that user is ended and removed, and the id is used
again after all others of the range.
"""

import grp
import logging
import pwd
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from trainyard_agent.host import procfs, unix_users
from trainyard_agent.host.files import DamagedFile, read_json, write_json
from trainyard_agent.host.process_tags import StillAlive

DEFAULT = range(61184, 65520)
"""The ids that systemd reserves for users of services (DynamicUser=)."""

LEAST = 1000
"""No lower id: those are of the machine's own services."""

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIRECTORIES = ("runs", "environments")
_LAST = ".last"

_log = logging.getLogger(__name__)


class NoFreeUser(OSError):
    """Every user id of the range is in use."""


class _Record(BaseModel):
    """The user of a run, and the job-dir that was given to it, "" without one."""

    user: int = Field(ge=LEAST)
    job_dir: str = ""


class JobUsers:
    """The users of the runs in one state directory. `ids`: those of new runs; none: new runs have the agent's user.
    Thread-safe."""

    def __init__(self, state_dir: Path, ids: Sequence[int] = ()) -> None:
        self._state_dir = state_dir
        self._directory = state_dir / "users"
        self._ids = ids
        self._lock = threading.Lock()

    def open(self) -> None:
        """Let users of jobs pass through the state directory to what is theirs, and to nothing else; free the users of
        runs that are gone."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        for path in self._state_dir.iterdir():
            if path.name not in _DIRECTORIES and not path.is_symlink():
                _hide(path)
        for name in _DIRECTORIES:
            directory = self._state_dir / name
            directory.mkdir(mode=0o700, exist_ok=True)
            for run in directory.iterdir():
                if self.of(run.name) is None:
                    _hide(run)
            directory.chmod(0o711)
        self._state_dir.chmod(0o711)
        for run_id, _ in list(self._records()):
            self.release(run_id)

    def of(self, run_id: str) -> int | None:
        """The user of a run; None: the agent's own."""
        record = self._record(run_id)
        return None if record is None else record.user

    def assign(self, run_id: str, job_dir: str = "") -> int | None:
        """The same for a run that may be new. Raises NoFreeUser, OSError."""
        if (assigned := self.of(run_id)) is not None or not self._ids:
            return assigned
        if not _RUN_ID.fullmatch(run_id):
            raise ValueError(f"{run_id!r} is not a run id")
        with self._lock:
            user = self._free()
            write_json(self._directory / _LAST, {"user": user})
            record = _Record(user=user, job_dir=job_dir)
            write_json(self._directory / f"{run_id}.json", record.model_dump())
            return user

    def kill_processes(self, run_id: str) -> None:
        """Kill everything that runs as the user of the run. Raises StillAlive."""
        user = self.of(run_id)
        if user is not None:
            unix_users.kill_all(user)

    def kill_all_processes(self) -> None:
        """The same for every run. Raises StillAlive."""
        for run_id, _ in list(self._records()):
            self.kill_processes(run_id)

    def first(self) -> int:
        """A user that the next run could have. Raises NoFreeUser."""
        with self._lock:
            return self._free()

    def release(self, run_id: str) -> None:
        """Free the user of a run without directories. On failure the run keeps it until a later call succeeds."""
        record = self._record(run_id)
        if record is None or any((self._state_dir / name / run_id).exists() for name in _DIRECTORIES):
            return
        try:
            unix_users.kill_all(record.user)
            if record.job_dir and Path(record.job_dir).is_dir():
                unix_users.give(Path(record.job_dir), 0, former=record.user)
            unix_users.remove_orphans(record.user)
            (self._directory / f"{run_id}.json").unlink(missing_ok=True)
        except (OSError, StillAlive) as error:
            _log.warning("user %d of run %s cannot be used again yet: %s", record.user, run_id, error)

    def _free(self) -> int:
        """The next id of the range that nobody has."""
        last = (read_json(self._directory / _LAST) or {}).get("user")
        start = self._ids.index(last) + 1 if last in self._ids else 0
        used = {record.user for _, record in self._records()}.union(*procfs.users().values())
        for user in (*self._ids[start:], *self._ids[:start]):
            if user not in used and not is_named(user):
                return user
        raise NoFreeUser(f"each of the {len(self._ids)} user ids for jobs is in use (--job-uids)")

    def _records(self) -> Iterator[tuple[str, _Record]]:
        for path in sorted(self._directory.glob("*.json")):
            if (record := self._record(path.stem)) is not None:
                yield path.stem, record

    def _record(self, run_id: str) -> _Record | None:
        """The record of a run. The group of the run's directory says who the user is where the file is damaged: neither
        a new one nor the agent's would do."""
        if not _RUN_ID.fullmatch(run_id):
            return None
        path = self._directory / f"{run_id}.json"
        try:
            value = read_json(path)
            return None if value is None else _Record.model_validate(value)
        except (DamagedFile, ValidationError):
            directories = (self._state_dir / name / run_id for name in _DIRECTORIES)
            groups = [directory.stat().st_gid for directory in directories if directory.is_dir()]
            return _Record(user=max(groups)) if groups and max(groups) >= LEAST else None


def is_named(user: int) -> bool:
    """Whether the machine has a user or a group with this id."""
    for find in (pwd.getpwuid, grp.getgrgid):
        try:
            find(user)
        except KeyError:
            continue
        return True
    return False


def _hide(path: Path) -> None:
    path.chmod(path.stat().st_mode & 0o7700)
