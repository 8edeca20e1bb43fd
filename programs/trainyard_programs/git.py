"""Runs git on a checkout so that nothing which its repository configures has a say.

`.git/config` of a tree from elsewhere can name programs (hooks, filters, drivers, a file system monitor), another work
tree, other files to include, other objects. So git does not run in that repository, but in one of ours: a temporary
directory with copies of the checkout's index and of its ignore patterns, and a configuration that we write. It names
the top of the checkout as the work tree, and the repository's objects. The user's own configuration counts.
"""

import os
import re
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 60.0
"""The longest that all reading of one checkout may take."""

Settings = tuple[tuple[str, str], ...]
"""Names and values in the order of a configuration file."""

_MAX_POINTER, _MAX_CONFIG, _MAX_INDEX = 2**16, 2**20, 2**28
_MAX_ERROR = 4096
_SETTINGS = {
    "LC_ALL": "C",
    "GIT_ALLOW_PROTOCOL": "none",  # no remote is asked for missing objects
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_SAFE = ("core.fsmonitor=false", "core.untrackedCache=false", f"core.hooksPath={os.devnull}", "diff.relative=false")
_OF_FILE_SYSTEM = frozenset(
    {"core.filemode", "core.ignorecase", "core.symlinks", "core.precomposeunicode", "core.autocrlf", "core.eol"}
)
"""Settings that a repository has because of the file system it lies on: all that is taken over from it."""

_WORD = re.compile(r"[A-Za-z0-9]{1,20}")
_SHARED_INDEX = re.compile(r"sharedindex\.[0-9a-f]{40,64}")


class GitError(Exception):
    """git cannot read a checkout. The text is a sentence's end: `git does not list it: TEXT`."""


class GitMissing(GitError):
    """git is not installed."""


class GitTooSlow(GitError):
    """git has not answered in time."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A checkout: the top of its work tree, git's own directory of it (HEAD, index), and the one that it has in common
    with other work trees of the repository (configuration, objects, refs)."""

    top: Path
    directory: Path
    common: Path


@dataclass(frozen=True, slots=True)
class GitOutput:
    """Output of a command, and whether it is longer than was asked for."""

    data: bytes
    is_cut: bool = False


def repository_of(directory: Path) -> Repository | None:
    """The checkout that has a directory: the first `.git` upwards. None outside of one. Raises GitError where a file
    `.git` leads to no repository."""
    directory = directory.resolve()
    try:
        owners = {0, os.geteuid(), directory.stat().st_uid}
    except OSError:
        return None
    for top in (directory, *directory.parents):
        if (found := _repository_at(top, owners)) is not None:
            return found
    return None


@contextmanager
def opened(repository: Repository, *, head: str = "", timeout_s: float = TIMEOUT_S) -> Iterator["Git"]:
    """git for a checkout, in a repository of ours whose HEAD is the commit `head`. Raises GitError."""
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="trainyard-git-") as name:
        ours = Path(name)
        settings = _read_settings(ours, repository.common / "config", deadline)
        for folder in ("refs", "info"):
            (ours / folder).mkdir()
        (ours / "HEAD").write_text(f"{head or 'ref: refs/heads/none'}\n")
        (ours / "config").write_text(_configuration(settings))
        _copy(repository.common / "info" / "exclude", ours / "info" / "exclude", _MAX_CONFIG)
        _copy(repository.directory / "index", ours / "index", _MAX_INDEX)
        for path in repository.directory.glob("sharedindex.*"):
            if _SHARED_INDEX.fullmatch(path.name):
                _copy(path, ours / path.name, _MAX_INDEX)
        yield Git(repository, settings, ours, deadline)


class Git:
    """git in a repository of ours, until a deadline. `settings` are those of the checkout's own configuration file,
    without what it includes."""

    def __init__(self, repository: Repository, settings: Settings, ours: Path, deadline: float) -> None:
        self.settings = settings
        self._repository = repository
        self._deadline = deadline
        self._environment = {
            "GIT_DIR": str(ours),
            "GIT_WORK_TREE": str(repository.top),
            "GIT_OBJECT_DIRECTORY": str(repository.common / "objects"),
        }

    def output(self, *arguments: str, limit: int, directory: Path | None = None) -> GitOutput | None:
        """Output of a command that runs in a directory of the checkout; None if it has failed for nothing, as
        `check-ignore` does. Raises GitError."""
        where = directory or self._repository.top
        return run(arguments, where, limit=limit, deadline=self._deadline, environment=self._environment)


def run(
    arguments: Sequence[str],
    directory: Path,
    *,
    limit: int,
    deadline: float,
    environment: Mapping[str, str] | None = None,
) -> GitOutput | None:
    """Output of git, at most `limit` bytes of it; None if it ends with 1 and says nothing. Raises GitError."""
    options = [word for option in _SAFE for word in ("-c", option)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    late = threading.Event()
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                ["git", "--no-pager", "-C", str(directory), *options, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**own, **_SETTINGS, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise GitMissing(f"git is not installed here ({error.strerror}).") from error

        def end() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
        timer.start()
        try:
            assert process.stdout is not None
            data = process.stdout.read(limit + 1)
            is_cut = len(data) > limit
            if is_cut:
                _kill(process)
            code = process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if late.is_set():
            raise GitTooSlow("git takes too long.")
        if is_cut or code == 0:
            return GitOutput(data[:limit], is_cut)
        errors.seek(0)
        reason = os.fsdecode(errors.read(_MAX_ERROR)).strip().partition("\n")[0]
        if code == 1 and not reason:
            return None
        raise GitError(reason or f"git {arguments[0]} ended with {code}.")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it has just ended


def _repository_at(top: Path, owners: set[int]) -> Repository | None:
    """The repository at a directory's `.git`. One that another user has put above somebody's directory is none."""
    entry = top / ".git"
    try:
        status, owner = entry.stat(), top.stat().st_uid
    except OSError:
        return None
    if status.st_uid not in (*owners, owner):
        return None
    if stat.S_ISDIR(status.st_mode):
        return _repository(top, entry)
    if not stat.S_ISREG(status.st_mode):
        return None
    word, _, target = _first_line(entry).partition(" ")
    found = _repository(top, top / target.strip()) if word == "gitdir:" and target else None
    if found is None:
        raise GitError(f"{entry} names no repository. Remove this file, if the directory is a copy of a checkout.")
    return found


def _repository(top: Path, directory: Path) -> Repository | None:
    directory = directory.resolve()
    shared = _first_line(directory / "commondir")
    common = (directory / shared).resolve() if shared else directory
    is_one = os.path.lexists(directory / "HEAD") and (common / "objects").is_dir() and (common / "refs").is_dir()
    return Repository(top, directory, common) if is_one else None


def _first_line(path: Path) -> str:
    """The first line of a short file; "" without one."""
    return os.fsdecode(read_file(path, _MAX_POINTER) or b"").partition("\n")[0].strip()


def read_file(path: Path, limit: int) -> bytes | None:
    """Content of a regular file; None without one, or if it is longer."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(limit + 1)
    except OSError:
        return None
    return data if len(data) <= limit else None


def _copy(source: Path, target: Path, limit: int) -> None:
    """Copy a file, if there is one, with its time, by which git knows which entries of an index it must look at."""
    try:
        status = source.stat()
    except OSError:
        return
    data = read_file(source, limit)
    if data is None:
        raise GitError(f"{source} cannot be read, or has more than {limit // 2**20} MiB.")
    target.write_bytes(data)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _read_settings(ours: Path, config: Path, deadline: float) -> Settings:
    """The settings in a configuration file. Nothing that it includes is read."""
    _copy(config, ours / "theirs", _MAX_CONFIG)
    if not (ours / "theirs").exists():
        return ()
    words = ("config", "--file", str(ours / "theirs"), "--no-includes", "--list", "-z")
    listed = run(words, ours, limit=2 * _MAX_CONFIG, deadline=deadline)
    entries = listed.data.decode(errors="replace").split("\0") if listed is not None else []
    return tuple((key, value) for key, _, value in (entry.partition("\n") for entry in entries) if key)


def _configuration(settings: Settings) -> str:
    """The configuration of our repository."""
    values = dict(settings)
    names = sorted(name for name in _OF_FILE_SYSTEM if _WORD.fullmatch(values.get(name, "")))
    core = [f"\t{name.partition('.')[2]} = {values[name]}" for name in names]
    hashing = values.get("extensions.objectformat", "")
    version, extensions = (1, f"[extensions]\n\tobjectFormat = {hashing}\n") if _WORD.fullmatch(hashing) else (0, "")
    return "\n".join(("[core]", f"\trepositoryFormatVersion = {version}", "\tbare = false", *core, extensions))
