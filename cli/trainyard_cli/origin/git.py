"""Reads the commit and the changes of a git working tree.

Nothing that the repository configures is run or changes what is read (`trainyard_programs.git`), and a repository whose
parts lead elsewhere is not read at all: its files could be those of somebody else's work.
"""

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from trainyard_programs import git
from trainyard_programs.git import Git, GitError, GitMissing, GitOutput, GitTooSlow, Repository, Settings
from trainyard_protocol.answers.origin import MAX_DIFF, MAX_FILES, GitOrigin
from trainyard_protocol.errors import shown

TIMEOUT_S = 5.0
"""The longest that all reading of one tree may take."""

NO_DIFF = "It was left out at the user's request."
OTHER_OBJECTS = "Objects of the repository lie elsewhere, so that its changes are not read."

_MAX_INDEX = 2**28
_MAX_STATUS = 2**22
_MAX_REFERENCE = 2**12
_MAX_OBJECTS = 200_000
_MAX_NAME, _MAX_WORD = 4096, 256
_STATUS = ("status", "--porcelain=v2", "-z", "--no-renames", "--untracked-files=normal")
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


def read(directory: Path, *, with_diff: bool = True, timeout_s: float = TIMEOUT_S) -> GitOrigin | None:
    """The commit, the changes and the untracked files of the tree that holds a directory; None without git and without
    a repository. Raises GitError for a repository that git or we refuse to read."""
    deadline = time.monotonic() + timeout_s
    try:
        repository = git.repository_of(directory)
        if repository is None:
            return None
        commit, branch = _head(repository, deadline)
        with git.opened(repository, head=commit, timeout_s=deadline - time.monotonic()) as opened:
            _check(repository, opened.settings)
            _check_commit(repository, opened, commit)
            origin = GitOrigin(commit=commit, branch=branch[:_MAX_WORD], remote=_remote(opened.settings, branch))
            if _has_other_objects(repository.common / "objects"):
                return origin.model_copy(update={"dirty": True, "diff_note": OTHER_OBJECTS})
            return origin.model_copy(update=_changes(repository, opened, commit, timeout_s, with_diff=with_diff))
    except GitMissing:
        return None


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


def _head(repository: Repository, deadline: float) -> tuple[str, str]:
    """The commit and the branch, as git itself says them: it refuses a repository of another user. Raises GitError."""
    for path in (repository.directory / "HEAD", repository.common / "packed-refs", repository.common / "refs"):
        _check_no_link(path)
    place = {"GIT_WORK_TREE": str(repository.top), "GIT_CEILING_DIRECTORIES": str(repository.top.parent)}
    commands = (
        ("rev-parse", "--absolute-git-dir"),
        ("symbolic-ref", "-q", "HEAD"),
        ("rev-parse", "-q", "--verify", "HEAD"),
    )
    outputs = [
        git.run(command, repository.top, limit=_MAX_REFERENCE, deadline=deadline, environment=place)
        for command in commands
    ]
    found, reference, commit = (os.fsdecode(output.data).strip() if output else "" for output in outputs)
    if Path(found).resolve() != repository.directory:
        raise GitError(f"git does not take {repository.directory} for a repository.")
    _check_reference(repository, reference)
    return commit, reference.removeprefix("refs/heads/")


def _check_reference(repository: Repository, reference: str) -> None:
    """Check that a reference is kept in the repository, and not in a file that a link leads to. Raises GitError."""
    for directory in {repository.directory, repository.common}:
        path = directory
        for part in reference.split("/"):
            path /= part
            _check_no_link(path)
        tables = directory / "reftable"
        for path in (tables, *(tables.iterdir() if tables.is_dir() else ())):
            _check_no_link(path)


def _check_commit(repository: Repository, opened: Git, commit: str) -> None:
    """Check that what HEAD names is a commit that the repository has. Raises GitError."""
    if commit and opened.output("cat-file", "-e", commit, limit=_MAX_REFERENCE) is None:
        raise GitError(f"HEAD of {repository.directory} names no commit that it has.")


def _check(repository: Repository, settings: Settings) -> None:
    """Check that all of a repository is that of its tree. Raises GitError."""
    top, directory, common = repository.top, repository.directory, repository.common
    of_common = (common / name for name in ("config", "objects", "info", "info/exclude"))
    for path in (top / ".git", directory / "index", directory / "commondir", *of_common):
        _check_no_link(path)
    for path in directory.glob("sharedindex.*"):
        _check_no_link(path)
    named = dict(settings).get("core.worktree", "")
    tree = (directory / named).resolve() if named else None
    if (top / ".git").is_dir():
        if common != directory:
            raise GitError(f"{directory} points to another repository, {common}.")
        if tree not in (None, top):
            raise GitError(f"core.worktree of {directory} names another tree, {shown(str(tree))}.")
    elif common != directory:  # a linked work tree, which its repository knows
        if common / "worktrees" != directory.parent or _known_tree(directory) != top / ".git":
            raise GitError(f"{top / '.git'} points to {directory}, which is not for this tree.")
    elif tree != top:  # a submodule
        raise GitError(f"{top / '.git'} points to {directory}, which is not for this tree.")


def _known_tree(directory: Path) -> Path | None:
    """The file `.git` of a linked work tree, as its repository names it."""
    data = git.read_file(directory / "gitdir", _MAX_REFERENCE)
    return None if data is None else (directory / os.fsdecode(data).strip()).resolve()


def _check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise GitError(f"{path} is a link.")


def _has_other_objects(objects: Path) -> bool:
    """Whether objects of a repository are those of another: by its alternates, or by links."""
    if os.path.lexists(objects / "info" / "alternates"):
        return True
    waiting, count = [objects], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if count > _MAX_OBJECTS or entry.is_symlink():
                    return True
                if entry.is_dir():
                    waiting.append(Path(entry.path))
    return False


def _changes(
    repository: Repository, opened: Git, commit: str, timeout_s: float, *, with_diff: bool
) -> Mapping[str, object]:
    """The fields of an origin that say how a tree differs from its commit. Raises GitError."""
    modules = f"--ignore-submodules={'dirty' if _has_own_modules(repository, opened) else 'all'}"
    changed, untracked = _status(opened.output(*_STATUS, modules, limit=_MAX_STATUS) or GitOutput(b""))
    diff = note = ""
    if changed and not with_diff:
        note = NO_DIFF
    elif changed and not commit:
        note = "There is no commit to compare with."
    elif changed:
        try:
            diff, note = _cut(opened.output(*_DIFF, modules, "HEAD", limit=MAX_DIFF))
        except GitTooSlow:
            note = f"git took longer than {timeout_s:g} s."
        except GitError:
            note = "git diff failed."
    return {
        "dirty": bool(changed),
        "changed": tuple(changed[:MAX_FILES]),
        "untracked": tuple(untracked[:MAX_FILES]),
        "more_files": max(0, len(changed) - MAX_FILES) + max(0, len(untracked) - MAX_FILES),
        "diff": diff,
        "diff_note": note,
    }


def _has_own_modules(repository: Repository, opened: Git) -> bool:
    """Whether each submodule is one of this tree, so that its commit may be read. Raises GitError for an index whose
    names lead out of the tree."""
    listed = opened.output("ls-files", "-s", "-z", limit=_MAX_INDEX)
    entries = filter(None, (listed or GitOutput(b"")).data.split(b"\0"))
    modules = []
    for fields, _, name in (entry.partition(b"\t") for entry in entries):
        if name.startswith(b"/") or b".." in name.split(b"/"):
            raise GitError(f"The index of {repository.directory} names {shown(os.fsdecode(name))}.")
        if fields.startswith(b"160000"):
            modules.append(repository.top / os.fsdecode(name))
    return all(_is_own_module(path) for path in modules)


def _is_own_module(path: Path) -> bool:
    try:
        if not stat.S_ISREG((path / ".git").lstat().st_mode):
            return (path / ".git").is_dir() and not (path / ".git").is_symlink()
        module = git.repository_of(path)
        if module is None or module.top != path:
            return False
        with git.opened(module) as opened:
            _check(module, opened.settings)
    except FileNotFoundError:  # not checked out
        return True
    except (OSError, GitError):
        return False
    return True


def _status(output: GitOutput) -> tuple[list[str], list[str]]:
    """Changed and untracked files out of `git status --porcelain=v2`."""
    entries = output.data.split(b"\0")[: -1 if output.is_cut else None]
    changed, untracked = [], []
    for entry in (raw.decode(errors="replace") for raw in entries):
        if entry.startswith("1 "):
            changed.append(entry.split(" ", 8)[-1][:_MAX_NAME])
        elif entry.startswith("u "):
            changed.append(entry.split(" ", 10)[-1][:_MAX_NAME])
        elif entry.startswith("? "):
            untracked.append(entry[2:][:_MAX_NAME])
    return changed, untracked


def _cut(output: GitOutput | None) -> tuple[str, str]:
    """The diff as text, and the note on it."""
    if output is None:
        return "", "git diff failed."
    text = output.data.decode(errors="replace").replace("\0", "\ufffd")
    if not output.is_cut:
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
