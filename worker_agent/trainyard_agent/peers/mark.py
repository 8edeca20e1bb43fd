"""Makes and removes a file in a directory that a job may change, as the user of the job:
`python -I -S mark.py USER make|remove NAME DIRECTORY...`. It needs the standard library alone.

`make` writes the directory on stdout in which the file is: the first one that exists; nothing without one. It follows
no link in the file's place, and changes no file that is there.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence

if __name__ == "__main__":  # started by its path, without site-packages
    sys.path.append(__file__.rpartition("/trainyard_agent/")[0])

from trainyard_agent.runtimes.supervisor import become_user

_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PROCESSES = 64


def make(name: str, directories: Sequence[str]) -> str:
    """Raises OSError."""
    for directory in directories:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(directory) as holder:
            try:
                os.close(os.open(name, _MAKE, 0o644, dir_fd=holder))
            except FileExistsError:  # of an earlier attempt
                if not stat.S_ISREG(os.stat(name, dir_fd=holder, follow_symlinks=False).st_mode):
                    raise
            return directory
    return ""


def remove(name: str, directory: str) -> None:
    """Raises OSError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(directory) as holder:
        os.unlink(name, dir_fd=holder)


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    holder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield holder
    finally:
        os.close(holder)


def main(user: int, action: str, name: str, directories: Sequence[str]) -> None:
    try:
        become_user(user, _PROCESSES)
        if action == "make":
            print(make(name, directories))
        else:
            remove(name, directories[0])
    except OSError as error:
        sys.exit(error.strerror)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
