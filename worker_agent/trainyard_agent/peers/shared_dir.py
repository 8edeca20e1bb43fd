"""Check that the machines of a gang share its job-dir: the agent with the primary leaves a file that others must find.

The file is in the directory, or in the first one above it that exists: programs create their job-dirs themselves.
"""

import time
from pathlib import Path

_WAIT_S, _PAUSE_S = 10.0, 0.25
"""A network file system may show a new file late."""


class NotShared(Exception):
    """Job-dir that the machines do not share. The message is a sentence."""


def leave_mark(job_dir: str, gang: str) -> Path | None:
    """Create the file. None for a job-dir that is no path. Raises NotShared where it cannot be created."""
    if not _is_path(job_dir):
        return None
    directory = next((path for path in (Path(job_dir), *Path(job_dir).parents) if path.is_dir()), Path("/"))
    if directory == Path("/"):
        raise NotShared(f"No directory of the job-dir {job_dir} exists on the machine of the primary.")
    mark = directory / _name(gang)
    try:
        mark.touch(mode=0o644)
    except OSError as error:
        raise NotShared(
            f"The job-dir {job_dir} cannot be written on the machine of the primary: {error.strerror}."
        ) from error
    return mark


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


def _is_path(job_dir: str) -> bool:
    return job_dir.startswith("/")


def _name(gang: str) -> str:
    return f".trainyard-{gang}"
