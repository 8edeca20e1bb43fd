"""The program uv, which is installed with the agent, for runs with users of their own: those may be unable to reach the
agent's, and must be unable to change it."""

import os
import shutil
import stat
import sys
from contextlib import suppress
from pathlib import Path

NAME = "uv"
_FOR_ALL = 0o755


def find() -> str:
    """The agent's uv; "" if it has none."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return shutil.which(NAME, path=path) or ""


def for_run(directory: Path, user: int | None) -> str:
    """The uv that a run's user can start, in the directory of its environment, which it may enter; "" if there is none.
    `user` None: the agent's own."""
    program = find()
    if user is None or not program:
        return program
    own = directory / NAME
    if not own.exists():
        _provide(Path(program).resolve(), own)
    return str(own)


def _provide(program: Path, own: Path) -> None:
    """Link to it if it is nobody's to change but this user's, or else copy it."""
    status = program.stat()
    is_safe = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == _FOR_ALL
    if is_safe:
        with suppress(OSError):  # another file system
            os.link(program, own)
            return
    shutil.copyfile(program, own)
    own.chmod(_FOR_ALL)
