"""Reads the commit and the changes of a git working tree. Nothing that the repository itself configures is run.

`.git/config` of a tree from elsewhere can name programs: a file system monitor, hooks, filters of files, diff drivers,
remotes of missing objects. Each is switched off, whatever else the repository says.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from trainyard_cli.git import GitTooSlow
from trainyard_protocol.views.origin import MAX_DIFF, MAX_FILES, GitOrigin

TIMEOUT_S = 5.0
"""The longest that all reading of one tree may take."""

NO_DIFF = "It was left out at the user's request."

_MAX_CONFIG = 2**20
_MAX_STATUS = 2**22
_MAX_FILTERS = 100
_MAX_NAME, _MAX_WORD = 4096, 256
_OF_ANOTHER_TREE = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_EXTERNAL_DIFF", "GIT_DIFF_OPTS"),
)
"""Variables that hooks and wrappers of git set, about a tree that need not be ours."""

_SETTINGS = {
    "LC_ALL": "C",
    "GIT_ALLOW_PROTOCOL": "none",  # no remote is asked for missing objects
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_SAFE = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "diff.relative=false")
_STATUS = (
    *("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "-z", "--no-renames", "--untracked-files=normal"),
    "--ignore-submodules=dirty",
)
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "HEAD"),
)


def read(directory: Path, *, with_diff: bool = True, timeout_s: float = TIMEOUT_S) -> GitOrigin | None:
    """The commit, the changes and the untracked files of the tree that holds a directory; None without git, without a
    repository, and for one that git or we refuse to read. Raises GitTooSlow."""
    git = _Git(directory, time.monotonic() + timeout_s)
    config = git.output("config", "--list", "--show-scope", "--includes", "-z", limit=_MAX_CONFIG)
    entries = _config(config[0]) if config is not None and not config[1] else None
    switched_off = _without_filters(entries) if entries is not None else None
    if entries is None or switched_off is None:
        return None
    git.options += switched_off
    status = git.output(*_STATUS, limit=_MAX_STATUS)
    if status is None:
        return None
    commit, branch, changed, untracked = _status(*status)
    diff = note = ""
    if changed and not with_diff:
        note = NO_DIFF
    elif changed and not commit:
        note = "There is no commit to compare with."
    elif changed:
        try:
            diff, note = _cut(git.output(*_DIFF, limit=MAX_DIFF))
        except GitTooSlow:
            note = f"git took longer than {timeout_s:g} s."
    return GitOrigin(
        commit=commit,
        branch=branch[:_MAX_WORD],
        remote=_remote([(key, value) for _, key, value in entries], branch),
        dirty=bool(changed),
        changed=tuple(changed[:MAX_FILES]),
        untracked=tuple(untracked[:MAX_FILES]),
        more_files=max(0, len(changed) - MAX_FILES) + max(0, len(untracked) - MAX_FILES),
        diff=diff,
        diff_note=note,
    )


def without_credentials(url: str) -> str:
    """A remote's URL without its user and password, and without a query, which may have a token; "" for a remote
    helper, whose address is a command. The user of ssh, without a password, is part of the address.

    >>> without_credentials("https://user:token@example.com/a.git?key=1")
    'https://example.com/a.git'
    >>> without_credentials("ssh://git@example.com/a.git")
    'ssh://git@example.com/a.git'
    """
    if "::" in url.partition("/")[0]:
        return ""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url  # a path, or USER@HOST:PATH, which has no password
    authority = rest.partition("/")[0]
    user, at, _ = authority.rpartition("@")
    if at and scheme in ("ssh", "git+ssh", "ssh+git") and ":" not in user:
        return url
    port = authority.rpartition(":")[2] if ":" in authority else ""
    if at:
        rest = rest[len(user) + 1 :]
    elif port and not port.isdecimal() and not authority.endswith("]"):  # of a password with a slash
        rest = rest.rpartition("@")[2]
    try:
        parts = urlsplit(f"{scheme}://{rest}")
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


class _Git:
    """git in a directory, until a deadline."""

    def __init__(self, directory: Path, deadline: float) -> None:
        self._directory = directory
        self._deadline = deadline
        self.options: list[str] = list(_SAFE)

    def output(self, *arguments: str, limit: int) -> tuple[bytes, bool] | None:
        """Output of a command, and whether it is longer than `limit` bytes; None if it failed, or git is not there.
        Raises GitTooSlow."""
        options = [word for option in self.options for word in ("-c", option)]
        environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_TREE}
        try:
            process = subprocess.Popen(
                ["git", "--no-pager", "-C", str(self._directory), *options, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment | _SETTINGS,
                start_new_session=True,
            )
        except OSError:
            return None
        late = threading.Event()

        def end() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(max(0.0, self._deadline - time.monotonic()), end)
        timer.start()
        try:
            assert process.stdout is not None
            data = process.stdout.read(limit + 1)
            is_long = len(data) > limit
            if is_long:
                _kill(process)
            code = process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if late.is_set():
            raise GitTooSlow
        return (data[:limit], is_long) if is_long or code == 0 else None


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it has just ended


def _config(output: bytes) -> list[tuple[str, str, str]]:
    """Scope, key and value of each entry of the configuration."""
    parts = output.decode(errors="replace").split("\0")
    return [(scope, *_pair(entry)) for scope, entry in zip(parts[::2], parts[1::2], strict=False)]


def _pair(entry: str) -> tuple[str, str]:
    key, _, value = entry.partition("\n")
    return key, value


def _without_filters(entries: Sequence[tuple[str, str, str]]) -> list[str] | None:
    """Options that switch off each filter of files that the repository itself has; those of the user stay. None if one
    has a name that no option can have."""
    names = {
        key.partition(".")[2].rpartition(".")[0]
        for scope, key, _ in entries
        if scope not in ("system", "global", "command") and key.startswith("filter.")
    }
    if len(names) > _MAX_FILTERS or any("=" in name or "\ufffd" in name for name in names):
        return None
    return [
        f"filter.{name}.{setting}" for name in sorted(names) for setting in ("clean=", "process=", "required=false")
    ]


def _status(output: bytes, is_cut: bool) -> tuple[str, str, list[str], list[str]]:
    """Commit, branch, changed and untracked files out of `git status --porcelain=v2`."""
    entries = output.split(b"\0")[: -1 if is_cut else None]
    commit = branch = ""
    changed, untracked = [], []
    for entry in (raw.decode(errors="replace") for raw in entries):
        if entry.startswith("# branch.oid "):
            commit = entry.removeprefix("# branch.oid ").replace("(initial)", "")
        elif entry.startswith("# branch.head "):
            branch = entry.removeprefix("# branch.head ").replace("(detached)", "")
        elif entry.startswith("1 "):
            changed.append(entry.split(" ", 8)[-1][:_MAX_NAME])
        elif entry.startswith("u "):
            changed.append(entry.split(" ", 10)[-1][:_MAX_NAME])
        elif entry.startswith("? "):
            untracked.append(entry[2:][:_MAX_NAME])
    return commit, branch, changed, untracked


def _cut(output: tuple[bytes, bool] | None) -> tuple[str, str]:
    """The diff as text, and the note on it."""
    if output is None:
        return "", "git diff failed."
    data, is_cut = output
    text = data.decode(errors="replace").replace("\0", "\ufffd")
    if not is_cut:
        return text, ""
    return text[: text.rfind("\n") + 1], f"It was cut after {MAX_DIFF // 2**20} MiB."


def _remote(entries: Sequence[tuple[str, str]], branch: str) -> str:
    """The URL of the branch's remote, else of `origin`, else of the only remote."""
    urls: Mapping[str, str] = dict(_urls(reversed(entries)))
    values = dict(entries)
    names = [values.get(f"branch.{branch}.remote", ""), "origin", *(urls if len(urls) == 1 else ())]
    url = next((urls[name] for name in names if name in urls), "")
    cleaned = without_credentials(url)
    return cleaned if len(cleaned) <= _MAX_NAME else ""


def _urls(entries: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for key, value in entries:
        if key.startswith("remote.") and key.endswith(".url"):
            yield key.removeprefix("remote.").removesuffix(".url"), value
