"""The lock of a job directory: two trainers that write to one would destroy each other's checkpoints.

On a file system it is an flock on checkpoints/lock, which ends with the process. In a bucket it is the object
checkpoints/lease.json with the holder and a counter that the holder increments every few seconds. A trainer that finds
it takes over if the holder was an earlier attempt of the same job, is a dead process of this machine, or if the counter
stands still for LEASE_SECONDS; otherwise it is refused. A holder that finds another one in its place stops saving.
"""

import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from trainyard_trainer.errors import TrainerUsageError
from trainyard_trainer.storage import BucketFolder, Folder, StorageError, path_errors

log = logging.getLogger("trainer")

LOCK = "lock"
LEASE = "lease.json"
BEAT_SECONDS = 10.0  # between two increments of the counter
LEASE_SECONDS = 40.0  # without an increment, after which the holder counts as dead
LOCK_SECONDS = 5.0  # for a process that is just ending


class JobDirLockedError(TrainerUsageError):
    """Another trainer writes to --job-dir."""


class Lock(Protocol):
    """A lock that is held."""

    def check(self) -> None:
        """JobDirLockedError if another trainer has taken over."""

    def release(self) -> None: ...


def lock(folder: Folder) -> Lock:
    """Lock a folder.

    Raises:
        JobDirLockedError: another trainer holds it.
    """
    if isinstance(folder, BucketFolder):
        return _BucketLease(folder)
    return _FileLock(Path(folder.url))


class _FileLock:
    def __init__(self, path: Path) -> None:
        with path_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            self._file = (path / LOCK).open("a+")
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                self._file.seek(0)
                holder = _parsed(self._file.read().encode())
                self._file.close()
                raise _refusal(str(path.parent), holder) from error
            except OSError as error:
                log.warning("%s cannot be locked against other trainers (%s); training continues.", path, error)
                return
        with path_errors(path):
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps(_identity()))
            self._file.flush()

    def check(self) -> None:
        pass

    def release(self) -> None:
        self._file.close()


class _BucketLease:
    def __init__(self, folder: BucketFolder) -> None:
        self._folder = folder
        self._own = _identity() | {"owner": secrets.token_hex(8), "beat": 0}
        self._lost: dict[str, Any] | None = None
        self._exclusive = threading.Lock()  # of the heartbeat's thread and `check`
        self._released = threading.Event()
        self._acquire()
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def check(self) -> None:
        self._beat()
        if self._lost is not None:
            raise _refusal(self._folder.url.rpartition("/")[0], self._lost)

    def release(self) -> None:
        self._released.set()
        with self._exclusive:
            if self._lost is None and self._holder()[0].get("owner") == self._own["owner"]:
                self._folder.remove(LEASE)

    def _acquire(self) -> None:
        holder, generation = self._holder()
        since = time.monotonic()
        while not self._may_claim(holder):
            if time.monotonic() - since < 0.5:
                log.info("--job-dir is locked by %s; waiting whether that is alive.", _described(holder))
            time.sleep(1)
            now, generation = self._holder()
            if (now.get("owner"), now.get("beat")) == (holder.get("owner"), holder.get("beat")):
                if time.monotonic() - since >= LEASE_SECONDS:
                    break
            elif now and not self._may_claim(now):
                raise _refusal(self._folder.url.rpartition("/")[0], now)
            else:
                holder = now
        if not self._write(generation):
            raise _refusal(self._folder.url.rpartition("/")[0], self._holder()[0])

    def _may_claim(self, holder: dict[str, Any]) -> bool:
        if not holder:
            return True
        if holder.get("job") and holder["job"] == self._own["job"]:
            return True  # of a job, one attempt runs at a time
        here = holder.get("machine") == self._own["machine"]
        return here and _start_of_process(int(holder.get("pid", 0))) != holder.get("process_start")

    def _keep(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            try:
                self._beat()
            except StorageError as error:
                log.warning("The lock of --job-dir could not be renewed: %s", error)

    def _beat(self) -> None:
        with self._exclusive:
            if self._released.is_set() or self._lost is not None:
                return
            holder, generation = self._holder()
            if holder and holder.get("owner") != self._own["owner"]:
                self._lost = holder
                return
            self._own["beat"] += 1
            if not self._write(generation):
                self._lost = self._holder()[0]

    def _holder(self) -> tuple[dict[str, Any], int]:
        """The content of the lease and its generation; empty and 0 if there is none."""
        data, generation = self._folder.read_version(LEASE)
        return _parsed(data), generation

    def _write(self, generation: int) -> bool:
        """Write the own lease in place of the one of this generation."""
        self._folder.write_version(LEASE, json.dumps(self._own).encode(), generation)
        # Not all emulators check generations, and a repeated request fails after one that succeeded: read it.
        return self._holder()[0] == self._own


def _identity() -> dict[str, Any]:
    machine = socket.gethostname()
    with contextlib.suppress(OSError):  # Linux has both; containers of a machine have other namespaces
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    names = ("CLOUD_ML_PROJECT_ID", "CLOUD_ML_JOB_ID", "CLOUD_ML_TRIAL_ID")
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start": _start_of_process(os.getpid()),
        "machine": machine,
        "job": "/".join(filter(None, map(os.environ.get, names))) if os.environ.get(names[1]) else "",
    }


def _start_of_process(pid: int) -> str | None:
    """When a process of this machine started, in ticks; None if it does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _described(holder: dict[str, Any]) -> str:
    job = f" of job {holder['job']}" if holder.get("job") else ""
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}{job}"


def _refusal(job_dir: str, holder: dict[str, Any]) -> JobDirLockedError:
    return JobDirLockedError(
        f"Another trainer writes to --job-dir {job_dir}: {_described(holder)}. End it, or choose another --job-dir."
    )
