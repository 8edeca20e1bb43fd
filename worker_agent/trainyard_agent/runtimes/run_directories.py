"""Runs as directories, as the runtimes of this machine and of Slurm keep them: `RUN/run.json`, `RUN/TASK/log.jsonl`."""

import logging
import os
import re
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from trainyard_agent.host import process_tags
from trainyard_agent.host.files import DamagedFile, read_json, remove_tree, write_json, write_private
from trainyard_agent.runtimes.attaching.local_command import end_attachments
from trainyard_agent.runtimes.base import Handle, LogSlice, Mount, SecretFile
from trainyard_agent.runtimes.log_file import RunLogs
from trainyard_protocol.wire.logs import LogPosition

REMOVED = ".removed-"
"""Of the names of directories whose removal has begun."""

MOUNTS = "mounts"
"""The directory of a run with links to its mounts."""

METRIC_BYTES = 1 << 20
"""A larger metric file is ignored: cloudml-hypertune writes a hundred lines."""

_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_Record = TypeVar("_Record", bound=Handle)
_Kind = TypeVar("_Kind", bound=BaseModel)


def is_run_id(run_id: str) -> bool:
    return bool(_RUN_ID.fullmatch(run_id))


def secret_path(directory: Path, name: str, path: str) -> Path:
    """The file below `directory` with a secret that the job wants as `path`."""
    return directory / name / path.rpartition("/")[2]


def write_secret_files(directory: Path, files: Sequence[SecretFile], mode: int = 0o600) -> None:
    """Write secrets. Again: the same. Raises OSError."""
    if files:
        directory.mkdir(mode=0o700, exist_ok=True)
    for file in files:
        path = secret_path(directory, file.name, file.path)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(path, file.value)
        path.chmod(mode)


def link_mounts(run: Path, mounts: Sequence[Mount]) -> None:
    """Make a link to each mount in the run's directory of mounts, which is there. Again: the same. Raises OSError."""
    for mount in mounts:
        link = run / MOUNTS / mount.name
        link.unlink(missing_ok=True)
        link.symlink_to(mount.source)


def mount_variables(run: Path, mounts: Sequence[Mount]) -> dict[str, str]:
    """The variables of the mounts with the paths of their links."""
    return {
        name: value for mount in mounts for name, value in mount.variables_at(str(run / MOUNTS / mount.name)).items()
    }


def metric_file(directory: Path) -> Path:
    """The metric file of the replica with this directory, in the one of its program, and where the agent reads it."""
    return directory / "work" / ".hypertune.metrics"


def read_metric_file(path: Path) -> bytes:
    """The content of a regular file; b"" if there is none, or something else in its place: a link, one with a second
    name, a pipe, a file that is too large. Its directory is the program's, those above are not. Raises OSError."""
    try:
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        file = os.open(path.name, _OPENED, dir_fd=directory)
    except OSError:  # there is none, or it is a link, a socket, or unreadable
        return b""
    finally:
        os.close(directory)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > METRIC_BYTES:
            return b""
        return os.pread(file, METRIC_BYTES, 0)
    finally:
        os.close(file)


class RecordFiles:
    """Reads records, of which any may be damaged, and warns in `log`, of each thing once."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._warned: set[str] = set()

    def read(self, path: Path, kind: type[_Kind]) -> _Kind | None:
        """The content of a file; None for a missing or damaged one."""
        try:
            value = read_json(path)
            return None if value is None else kind.model_validate(value)
        except (DamagedFile, ValidationError) as error:
            self.warn_once(f"{path} is ignored: {error}")
            return None

    def warn_once(self, message: str) -> None:
        """Log a warning, the same message only once."""
        if message not in self._warned:
            self._log.warning("%s", message)
        self._warned.add(message)


class RunDirectories(ABC, Generic[_Record]):
    """The part of a runtime that reads and writes them. `kind` is the record in run.json, a handle with more."""

    def __init__(self, runs: Path, kind: type[_Record], log: logging.Logger) -> None:
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._runs, self._kind = runs, kind
        self._lock = threading.RLock()
        self._files = RecordFiles(log)
        self._logs = RunLogs(runs)
        self._read_records: dict[str, tuple[tuple[int, int], _Record]] = {}
        """Records of runs, each with the number and the time of change of the file that it was read from."""

    @abstractmethod
    def remove(self, run_id: str) -> None:
        """Remove a run: see `Runtime.remove`."""

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        return self._logs.read(run_id, task, start, max_lines, max_bytes)

    def resume_log(self, run_id: str, task: str, position: LogPosition) -> None:
        """Every line can be read again."""

    def read_metrics(self, run_id: str, task: str) -> bytes:
        record = self._record(run_id)
        if record is None or task not in record.addresses:
            return b""
        return read_metric_file(metric_file(self._runs / run_id / task))

    def _record(self, run_id: str) -> _Record | None:
        if not is_run_id(run_id):
            return None
        path = self._runs / run_id / "run.json"
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        file = (status.st_ino, status.st_mtime_ns)  # it is never changed in place
        read = self._read_records.get(run_id)
        if read is not None and read[0] == file:
            return read[1]
        record = self._files.read(path, self._kind)
        if record is not None:
            self._read_records[run_id] = (file, record)
        return record

    def _records(self) -> list[_Record]:
        records: list[_Record] = []
        for path in sorted(self._runs.iterdir()):
            try:
                record = self._record(path.name)
            except OSError as error:
                self._files.warn_once(f"{path} cannot be read: {error}")
            else:
                records += [record] if record else []
        return records

    def _write(self, record: _Record) -> None:
        # A run that was not launched is removed after a crash, whatever its record says.
        path = self._runs / record.run_id / "run.json"
        write_json(path, record.model_dump(mode="json"), durable=record.launched)

    def _recovered(self) -> list[_Record]:
        """The launched runs. Those that were not launched are removed, and the rest of those whose removal had begun;
        one that cannot be removed is warned of, and the others are not affected. What was attached to them is ended."""
        end_attachments(self._runs.parent)
        for path in sorted(self._runs.iterdir()):
            try:
                if path.name.startswith(REMOVED):
                    remove_tree(path)
                elif (record := self._record(path.name)) is None or not record.launched:
                    self.remove(path.name)
            except (OSError, process_tags.StillAlive) as error:
                self._warn_of_rest(path, error)
        return [record for record in self._records() if record.launched]

    def _remove_directory(self, run_id: str) -> None:
        """Remove the directory of a run, at once for readers of its logs. What cannot be removed is warned of."""
        removed = self._runs / f"{REMOVED}{run_id}.{time.time_ns()}"  # an earlier removal may have failed
        (self._runs / run_id).rename(removed)
        self._logs.forget(run_id)
        self._read_records.pop(run_id, None)
        try:
            remove_tree(removed)
        except OSError as error:
            self._warn_of_rest(removed, error)

    def _warn_of_rest(self, path: Path, error: Exception) -> None:
        self._files.warn_once(f"{path} cannot be removed; the next agent tries again: {error}")
