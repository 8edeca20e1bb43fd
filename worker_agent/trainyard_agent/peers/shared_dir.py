"""Check that the machines of a gang share its job-dir: the agent with the primary leaves a file that others must find.

The file is in the directory, or in the first one above it that exists: programs create their job-dirs themselves.
"""

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.peers import mark

_WAIT_S, _PAUSE_S = 10.0, 0.25
"""A network file system may show a new file late."""

_MARK_S = 60.0


class NotShared(Exception):
    """Job-dir that the machines do not share. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class SharedMark:
    """A file that was left, by this user; None: the agent's own."""

    directory: str
    name: str
    user: int | None

    def remove(self) -> None:
        """Remove the file. Where that fails it stays, which harms nobody."""
        with contextlib.suppress(OSError):
            if self.user is None:
                mark.remove(self.name, self.directory)
            else:
                _as_user(self.user, "remove", self.name, [self.directory])


def leave_mark(job_dir: str, gang: str, source: str = "", user: int | None = None) -> SharedMark | None:
    """Create the file, as the user of the run; None: the agent's own. `source` is what containers have mounted of the
    job-dir, which no job can replace by a link; "": programs have the whole path. None for a job-dir that is no path.
    Raises NotShared where it cannot be created."""
    if not _is_path(job_dir):
        return None
    name, places = _name(gang), [source] if source else _below_root(job_dir)
    try:
        directory = mark.make(name, places) if user is None else _as_user(user, "make", name, places)
    except OSError as error:
        raise NotShared(
            f"The job-dir {job_dir} cannot be written on the machine of the primary: {error.strerror}."
        ) from error
    if not directory:
        raise NotShared(f"No directory of the job-dir {job_dir} exists on the machine of the primary.")
    return SharedMark(directory, name, user)


def _as_user(user: int, action: str, name: str, directories: list[str]) -> str:
    """Raises OSError."""
    command = [sys.executable, "-I", "-S", mark.__file__, str(user), action, name, *directories]
    try:
        done = subprocess.run(command, env={}, capture_output=True, text=True, check=False, timeout=_MARK_S)
    except subprocess.TimeoutExpired as error:
        raise OSError(0, f"it does not answer within {_MARK_S:.0f} s") from error
    if done.returncode:
        raise OSError(0, (done.stderr.strip().splitlines() or ["it cannot be used"])[-1])
    return done.stdout.strip("\n")


def find_mark(job_dir: str, gang: str) -> None:
    """Wait a little for the file. Raises NotShared without it."""
    if not _is_path(job_dir):
        return
    places = [path / _name(gang) for path in (Path(job_dir), *Path(job_dir).parents)]
    until = time.monotonic() + _WAIT_S
    while not any(map(_exists, places)):
        if time.monotonic() >= until:
            raise NotShared(
                f"The job-dir {job_dir} is not shared: a file that the agent of the primary wrote is not seen here. "
                "Mount the same directory on each machine (--shared-job-dirs), or use gs://."
            )
        time.sleep(_PAUSE_S)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _below_root(job_dir: str) -> list[str]:
    """The job-dir and what is above it, without the root of all."""
    return [str(path) for path in (Path(job_dir), *Path(job_dir).parents)][:-1]


def _is_path(job_dir: str) -> bool:
    return job_dir.startswith("/")


def _name(gang: str) -> str:
    return f".trainyard-{gang}"
