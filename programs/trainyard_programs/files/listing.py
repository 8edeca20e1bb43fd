"""Which files are the program: the one answer for whatever is sent to a replica.

In a git checkout it is what git lists: tracked files, and others that are not ignored, of submodules and nested
repositories too. Elsewhere it is everything. Caches, Python environments and files that look like secrets stay here,
unless git has them already.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard_programs import git
from trainyard_programs.files.secret_files import secret_in
from trainyard_programs.git import GitError, GitMissing, Repository
from trainyard_protocol.errors import InvalidArgument, shown
from trainyard_protocol.fields import sized

MAX_BYTES = 512 * 2**20
"""The largest program that a server accepts by default."""

MAX_FILES = 100_000

IGNORED = "ignored by git"
CACHE = "a cache"
ENVIRONMENT = "a Python environment"
HISTORY = "the history of a repository"
EXPECTED = frozenset({IGNORED, CACHE, ENVIRONMENT, HISTORY})
"""Reasons that nobody must be told at once."""

HISTORIES = frozenset({".git", ".hg", ".svn"})
CACHES = frozenset(
    {"__pycache__", "node_modules", ".tox", ".nox", ".ipynb_checkpoints", ".mypy_cache", ".ruff_cache"}
    | {".pytest_cache", ".hypothesis", ".DS_Store", "Thumbs.db"}
)
_CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
_SUBMODULE = b"160000"
_SPECIAL = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_MAX_OUTPUT = 2**27
_MAX_NAME = 300
_MAX_LOOKED_AT = 1000
_LARGEST = 5
_COUNTED = 4
"""How many times the files of a program are listed, to find those of which there are too many."""


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """A file as it is on disk, whose content is read at `path`, or a symbolic link to `link`, which is relative and
    leads to a place in the same tree."""

    path: Path
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    link: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file, or a directory as a whole, that stays here, and why. Both are for people."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProgramListing:
    """Files by their names relative to `root`, sorted, and directories without any. `followed` are the names of links
    that lead out of the root, which the listing has as what they lead to."""

    root: Path
    files: Mapping[str, ProgramFile]
    empty: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    followed: tuple[str, ...]
    in_git: bool

    @property
    def size(self) -> int:
        """All bytes."""
        return sum(file.size for file in self.files.values())


def list_files(
    root: Path,
    *,
    include: Sequence[Path] = (),
    below: Collection[str] = ("",),
    most_bytes: int = MAX_BYTES,
    most_files: int = MAX_FILES,
    asks_git: bool = True,
) -> ProgramListing:
    """The files of the program at `root`: those of its directories and files `below` ("": all). `include` names what is
    sent though a rule leaves it out, relative to the current directory. Without `asks_git` a checkout is a directory
    like any other: git runs what the configuration of a repository says.

    Raises InvalidArgument for more than may be sent, for a tracked file that cannot be read, and where git cannot say
    what it ignores.
    """
    top = root.resolve()
    if not top.is_dir():
        raise InvalidArgument(f"{root} is not a directory.")
    starts = _starts(top, below)
    lister = _Lister(top, starts, most_files, asks_git)
    for start in starts:
        lister.walk(start)
    for path in include:
        lister.include(path)
    for start in filter(lister.left_out.__contains__, starts):
        raise InvalidArgument(
            f"{root / start} is not sent, and the program needs it: {lister.left_out[start]}. --include sends what "
            "looks like a secret."
        )
    listing = lister.listing()
    if len(listing.files) > most_files:
        raise _too_many(root, listing.files, most_files, in_git=listing.in_git)
    if listing.size > most_bytes:
        raise InvalidArgument(
            f"{root} has {sized(listing.size)} of files, and a program has at most {sized(most_bytes)}. "
            f"{_largest(listing.files, lambda file: file.size, sized)} {_advice(listing.in_git)}"
        )
    return listing


def checkout_of(directory: Path) -> Path | None:
    """The top of the git checkout that has a directory; None outside of one, and where the checkout ignores it. Raises
    InvalidArgument where git cannot say that."""
    found = _repository_of(directory.resolve())
    return None if found is None else found.top


@dataclass(frozen=True, slots=True)
class _Rules:
    """The names that git lists below a directory, relative to that. `nested` are directories with rules of their own:
    submodules and repositories."""

    tracked: frozenset[str]
    others: frozenset[str]
    nested: frozenset[str]
    parents: frozenset[str]
    tracked_parents: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Bound:
    """The tree in which links are kept as links: a directory, its name in the listing, and whether it is the target of
    a link, in which no other link is followed."""

    path: Path
    name: str = ""
    is_followed: bool = False


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory to look at. `inside` is its name for the rules. `reason` is that of a cache or environment, of which
    only tracked files are sent; `is_asked_for`: the user has named it, and no rule leaves out what it has."""

    path: Path
    name: str
    bound: _Bound
    rules: _Rules | None = None
    inside: str = ""
    reason: str = ""
    is_asked_for: bool = False

    def child(self, name: str) -> "_Directory":
        return _Directory(
            path=self.path / name,
            name=_join(self.name, name),
            bound=self.bound,
            rules=self.rules,
            inside=_join(self.inside, name),
            reason=self.reason,
            is_asked_for=self.is_asked_for,
        )


@dataclass(slots=True)
class _Lister:
    """A listing in the making."""

    root: Path
    starts: tuple[str, ...]
    most_files: int
    asks_git: bool = True
    files: dict[str, ProgramFile] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    followed: dict[str, None] = field(default_factory=dict)
    in_git: bool = False

    def walk(self, name: str) -> None:
        """List a directory or a file of the root by the rules."""
        path = self.root / name
        directory = _Directory(path, name, _Bound(self.root))
        if path.is_dir() and not path.is_symlink():
            repository = _repository_of(path) if self.asks_git else None
            self.in_git = self.in_git or repository is not None
            self._walk(_ruled(directory, repository), is_judged=False)
        else:
            self._named(directory)

    def include(self, given: Path) -> None:
        """List what the user asks for, whatever the rules say."""
        self._include(*self._place(given))

    def _include(self, name: str, path: Path) -> None:
        for other in [other for other in self.left_out if _is_below(other, name)]:
            del self.left_out[other]
        bound = _Bound(self.root)
        if not path.is_relative_to(self.root):  # behind a link that is followed
            bound = _Bound(path.parent, name.rpartition("/")[0], is_followed=True)
        directory = _Directory(path, name, bound, is_asked_for=True)
        if path.is_dir() and not path.is_symlink():
            self._walk(directory)
            return
        self._named(directory)
        if name in self.files and self.files[name].link and _status(path) is not None:
            target = Path(os.path.normpath(path.parent / self.files[name].link))
            inner = _name(target, self.root)
            if inner not in self.files and inner not in _parents(self.files):
                self._include(inner, target)

    def listing(self) -> ProgramListing:
        parents = _parents(self.files)
        empty = sorted(self.empty - parents - self.files.keys())
        left_out = (LeftOut(shown(name, _MAX_NAME), reason) for name, reason in sorted(self.left_out.items()))
        return ProgramListing(
            root=self.root,
            files=dict(sorted(self.files.items())),
            empty=tuple(empty),
            left_out=tuple(left_out),
            followed=tuple(sorted(self.followed)),
            in_git=self.in_git,
        )

    def _place(self, given: Path) -> tuple[str, Path]:
        """The name in the listing of a path that the user gives, and its place. Raises InvalidArgument."""
        path = Path(os.path.normpath(Path.cwd() / given.expanduser()))
        if not os.path.lexists(path):
            raise InvalidArgument(f"--include {given} does not exist.")
        physical = path.parent.resolve() / path.name
        if path.resolve() == self.root:
            return "", self.root
        for place in (physical, path):
            if place.is_relative_to(self.root):
                return _name(place, self.root), physical
        raise InvalidArgument(f"--include {given} is not in {self.root}, the directory of the program.")

    def _named(self, directory: _Directory) -> None:
        """List one file or link by its name."""
        try:
            status = os.lstat(directory.path)
        except OSError as error:
            raise InvalidArgument(f"{directory.path} cannot be read: {error.strerror}.") from error
        self._add(directory, status, is_tracked=False)

    def _walk(self, start: _Directory, *, is_judged: bool = True) -> None:
        """List a directory. It may be a cache or an environment itself, unless it is the program's own."""
        waiting = [start]
        while waiting:
            directory = waiting.pop()
            try:
                with os.scandir(directory.path) as scanned:
                    entries = sorted(scanned, key=lambda entry: entry.name)
            except OSError as error:
                self._unreadable(directory, error, directory.inside in _tracked_parents(directory))
                continue
            names = {entry.name for entry in entries}
            parts: frozenset[str] = frozenset()
            if is_judged or directory is not start:
                directory = _judged(directory, names)
            elif "pyvenv.cfg" in names:
                parts = _parts_of_environment(directory.path)
            if directory.reason and directory.inside not in _tracked_parents(directory):
                self.left_out[directory.name] = directory.reason
                continue
            if not entries and directory.rules is None and directory.name:
                self.empty.add(directory.name)
            for entry in entries:
                child = directory.child(entry.name)
                reason = ENVIRONMENT if entry.name in parts else _own_reason(directory, entry.name)
                if reason and child.inside not in _tracked(directory):
                    if child.inside not in _tracked_parents(directory):
                        if entry.name != ".git":
                            self.left_out[child.name] = reason
                        continue
                    child = replace(child, reason=reason)
                if entry.is_dir(follow_symlinks=False):
                    self._enter(child, waiting)
                else:
                    self._entry(child, entry)

    def _enter(self, child: _Directory, waiting: list[_Directory]) -> None:
        """Put a directory on the list of those to look at, if it has anything by its rules."""
        rules = child.rules
        if child.is_asked_for:
            waiting.append(child)
        elif rules is None or child.inside in rules.nested:
            waiting.append(_ruled(child, _nested_repository(child.path) if self.asks_git else None))
        elif child.inside in rules.parents:
            waiting.append(child)
        elif not os.access(child.path, os.R_OK | os.X_OK):
            self._unreadable(child, PermissionError(13, "Permission denied"), is_tracked=False)
        elif _has_file(child.path):
            self.left_out[child.name] = IGNORED

    def _entry(self, child: _Directory, entry: "os.DirEntry[str]") -> None:
        """Add a file or a link, if the rules have it."""
        rules, is_tracked = child.rules, child.inside in _tracked(child)
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # removed in between
            return
        if rules is not None and not is_tracked and child.inside not in rules.others:
            self.left_out[child.name] = _SPECIAL.get(stat.S_IFMT(status.st_mode), IGNORED)
            return
        if child.reason and not is_tracked:
            self.left_out[child.name] = child.reason
            return
        self._add(child, status, is_tracked=is_tracked)

    def _add(self, place: _Directory, status: os.stat_result, *, is_tracked: bool) -> None:
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFLNK:
            self._link(place, status)
        elif kind != stat.S_IFREG:
            self.left_out[place.name] = _SPECIAL.get(kind, "neither a file nor a directory")
        elif not (status.st_mode & stat.S_IROTH or os.access(place.path, os.R_OK)):
            self._unreadable(place, PermissionError(13, "Permission denied"), is_tracked)
        elif not _has_leave(place, is_tracked) and (secret := secret_in(str(place.path), status)):
            self.left_out[place.name] = f"looks like a secret: {secret}"
        else:
            mode = 0o755 if status.st_mode & 0o100 else 0o644
            self._put(place.name, ProgramFile(place.path, status.st_size, mode, status.st_mtime_ns))

    def _put(self, name: str, file: ProgramFile) -> None:
        self.files[name] = file
        if len(self.files) > _COUNTED * self.most_files:  # there is no end of them
            raise _too_many(self.root, self.files, self.most_files, in_git=self.in_git)

    def _unreadable(self, place: _Directory, error: OSError, is_tracked: bool) -> None:
        """Leave out what cannot be read, as the program itself could not read it here. Raises InvalidArgument for
        what belongs to the program for sure."""
        if isinstance(error, FileNotFoundError):  # removed in between
            return
        if is_tracked or not place.name:
            raise InvalidArgument(
                f"{shown(str(place.path), _MAX_NAME)} cannot be read: {error.strerror}. Give yourself the right to "
                "read it (chmod), or remove it from git and list it in .gitignore."
            )
        self.left_out[place.name] = f"cannot be read: {error.strerror}"

    def _link(self, place: _Directory, status: os.stat_result) -> None:
        """Keep a link within the tree as a link, and follow one that leaves the tree, once."""
        try:
            text = str(place.path.readlink())
        except OSError:  # removed in between
            return
        parent, found = place.path.parent, _status(place.path)
        target = _target_within(place.bound, place.path, text)
        if target is not None and (found or not text.startswith("/")) and self._is_sent(place.bound, target):
            kept = os.path.relpath(target, parent)
            link = text if os.path.normpath(text) == kept else kept
            self._put(place.name, ProgramFile(place.path, 0, 0o644, status.st_mtime_ns, link))
        elif found is None:
            self.left_out[place.name] = f"a link to {shown(text)}, which is not there"
        elif place.bound.is_followed:
            self.left_out[place.name] = f"a link to {shown(text)}, outside the target of another link"
        else:
            self._follow(place, place.path.resolve(), found)

    def _is_sent(self, bound: _Bound, target: Path) -> bool:
        """Whether a place of the tree is in a part of it that is sent."""
        return bound.is_followed or any(_is_below(_name(target, bound.path), start) for start in self.starts)

    def _follow(self, place: _Directory, real: Path, status: os.stat_result) -> None:
        home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - which raises nothing without a home
        if Path(home).is_relative_to(real) or self.root.is_relative_to(real):
            self.left_out[place.name] = f"a link to {shown(str(real))}, which has more than this program"
            return
        bound = _Bound(real, place.name, is_followed=True)
        target = _Directory(real, place.name, bound, is_asked_for=place.is_asked_for)
        if not stat.S_ISDIR(status.st_mode):
            self._named(target)
        elif target.is_asked_for:
            self._walk(target)
        else:
            self._walk(_ruled(target, _repository_of(real) if self.asks_git else None))
        if place.name not in self.left_out and not real.is_relative_to(self.root):
            self.followed[place.name] = None


def _starts(root: Path, below: Collection[str]) -> tuple[str, ...]:
    """The directories and files to list, none of them below another. Raises InvalidArgument."""
    names = sorted({_join("", os.path.normpath(name)) for name in below})
    for name in names:
        if name.startswith(("/", "../")) or name == ".." or not os.path.lexists(root / name):
            raise InvalidArgument(f"{shown(name, _MAX_NAME)} is not in {root}.")
    return tuple(name for name in names if not any(other != name and _is_below(name, other) for other in names))


def _join(parent: str, name: str) -> str:
    """The POSIX name of an entry of a directory; "" is the root's."""
    if name == ".":
        return parent
    return f"{parent}/{name}" if parent else name


def _name(path: Path, directory: Path) -> str:
    """The name of a place in a directory."""
    return _join("", path.relative_to(directory).as_posix())


def _is_below(name: str, directory: str) -> bool:
    """Whether a name or path is that of a directory or of something in it."""
    return not directory or name == directory or name.startswith(f"{directory.rstrip('/')}/")


def _parents(names: Iterable[str]) -> frozenset[str]:
    """All directories of files."""
    parents: set[str] = {""}
    for name in names:
        parent = name.rpartition("/")[0]
        while parent not in parents:
            parents.add(parent)
            parent = parent.rpartition("/")[0]
    return frozenset(parents)


def _tracked(directory: _Directory) -> frozenset[str]:
    return directory.rules.tracked if directory.rules is not None else frozenset()


def _tracked_parents(directory: _Directory) -> frozenset[str]:
    return directory.rules.tracked_parents if directory.rules is not None else frozenset()


def _has_leave(place: _Directory, is_tracked: bool) -> bool:
    """Whether a file is sent even if it is a secret: git has it already, though not behind a link that leaves."""
    return place.is_asked_for or (is_tracked and not place.bound.is_followed)


def _judged(directory: _Directory, names: Collection[str]) -> _Directory:
    """A directory with the reason that its own content gives."""
    if directory.reason or directory.is_asked_for:
        return directory
    if "pyvenv.cfg" in names or ("conda-meta" in names and (directory.path / "conda-meta" / "history").exists()):
        return replace(directory, reason=ENVIRONMENT)
    tag = git.read_file(directory.path / "CACHEDIR.TAG", 2**16) if "CACHEDIR.TAG" in names else None
    if tag is not None and tag.startswith(_CACHE_SIGNATURE):
        return replace(directory, reason=CACHE)
    return directory


def _parts_of_environment(path: Path) -> frozenset[str]:
    """The entries of an environment that was made in the directory of the program itself."""
    parts = {"pyvenv.cfg", "lib64"}
    if any(path.glob("lib/python3*")):
        parts.add("lib")
    if (path / "bin" / "activate").exists():
        parts |= {"bin", "include"}
    return frozenset(parts)


def _own_reason(directory: _Directory, name: str) -> str:
    """The reason to leave out an entry of a directory by its name; "" without one."""
    if name in HISTORIES:
        return HISTORY
    if directory.is_asked_for:
        return ""
    return CACHE if name in CACHES or name.endswith((".pyc", ".pyo")) else ""


def _status(path: Path) -> os.stat_result | None:
    """The status of what a path leads to; None where that is not there, or nobody may look."""
    try:
        return path.stat()
    except OSError:
        return None


def _has_file(path: Path) -> bool:
    """Whether a directory has anything but directories."""
    waiting, looked_at = [str(path)], 0
    while waiting and looked_at < _MAX_LOOKED_AT:
        looked_at += 1
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        return True
                    waiting.append(entry.path)
        except OSError:  # removed in between, or not to be read: nothing that is listed
            continue
    return bool(waiting)


def _target_within(bound: _Bound, path: Path, text: str) -> Path | None:
    """The place in a tree to which a link leads; None where it leads out. What lies behind another link of the tree is
    in the tree too, as that link is either kept or followed."""
    words = text.split("/")
    while words and words[0] in ("..", ""):
        words.pop(0)
    lexical = Path(os.path.normpath(path.parent / text))
    if ".." not in words and lexical.is_relative_to(bound.path):
        return lexical
    real = Path(os.path.realpath(path))
    return real if real.is_relative_to(bound.path) else None


def _repository_of(directory: Path) -> Repository | None:
    """The checkout that has a directory; None outside of one, and where it ignores the directory. Raises
    InvalidArgument."""
    try:
        found = git.repository_of(directory)
        if found is None or found.top == directory:
            return found
        with git.opened(found) as opened:
            inner = f"./{_name(directory, found.top)}"
            is_ignored = opened.output("check-ignore", "-q", "--", inner, limit=_MAX_OUTPUT) is not None
    except GitError as error:
        raise _refusal(directory, error) from error
    return None if is_ignored else found


def _nested_repository(path: Path) -> Repository | None:
    """The repository whose top is a directory below another. A copy of a submodule without its repository has none."""
    if not os.path.lexists(path / ".git"):
        return None
    try:
        found = git.repository_of(path)
    except GitError:
        return None
    return found if found is not None and found.top == path else None


def _refusal(directory: Path, error: GitError) -> InvalidArgument:
    """The error where git does not answer: what it ignores must not be sent, so nothing is."""
    if isinstance(error, GitMissing):
        return InvalidArgument(
            f"{directory} is in a checkout of git, and git is not installed here to say which files it ignores. "
            "Install git, or copy the program out of the checkout."
        )
    return InvalidArgument(f"git does not list the files of {directory}, so that .gitignore is not known: {error}")


def _ruled(directory: _Directory, repository: Repository | None) -> _Directory:
    """A directory with the rules of its repository. Raises InvalidArgument."""
    rules = None if repository is None else _rules(repository, directory.path)
    return replace(directory, rules=rules, inside="")


def _rules(repository: Repository, directory: Path) -> _Rules:
    """The names that git lists below a directory of a checkout. Raises InvalidArgument."""
    try:
        with git.opened(repository) as opened:
            staged = opened.output("ls-files", "-s", "-z", limit=_MAX_OUTPUT, directory=directory)
            listed = opened.output("ls-files", "-o", "--exclude-standard", "-z", limit=_MAX_OUTPUT, directory=directory)
    except GitError as error:
        raise _refusal(directory, error) from error
    if any(output is not None and output.is_cut for output in (staged, listed)):
        raise InvalidArgument(f"{directory} has more files than a program may have. {_advice(True)}")
    entries = [(fields, os.fsdecode(name)) for fields, _, name in (entry.partition(b"\t") for entry in _split(staged))]
    names = [os.fsdecode(name) for name in _split(listed)]
    nested = frozenset(name for fields, name in entries if fields.startswith(_SUBMODULE))
    tracked = frozenset(name for _, name in entries) - nested
    tracked_parents = _parents((*tracked, *nested)) | nested if entries else frozenset()
    others = frozenset(name for name in names if not name.endswith("/"))
    nested |= {name.rstrip("/") for name in names if name.endswith("/")}
    return _Rules(tracked, others, nested, tracked_parents | _parents((*others, *nested)), tracked_parents)


def _split(output: git.GitOutput | None) -> Iterator[bytes]:
    return filter(None, output.data.split(b"\0") if output is not None else ())


def _too_many(root: Path, files: Mapping[str, ProgramFile], most: int, *, in_git: bool) -> InvalidArgument:
    return InvalidArgument(
        f"{root} has more than {most} files, the most of a program. "
        f"{_largest(files, lambda _: 1, '{} files'.format)} {_advice(in_git)}"
    )


def _largest(files: Mapping[str, ProgramFile], weight: Callable[[ProgramFile], int], show: Callable[[int], str]) -> str:
    """The files and directories that have most, in words: of the directory in which they are, where that is one."""
    prefix = ""
    while True:
        sums: Counter[str] = Counter()
        for name, file in files.items():
            if name.startswith(prefix):
                head, slash, _ = name[len(prefix) :].partition("/")
                sums[prefix + head + slash] += weight(file)
        ordered = sums.most_common(_LARGEST)
        if not (ordered and ordered[0][0].endswith("/") and ordered[0][1] >= 0.8 * sum(sums.values())):
            break
        if len({name.rpartition("/")[0] for name in files if name.startswith(ordered[0][0])}) == 1:
            break
        prefix = ordered[0][0]
    return "The largest: " + ", ".join(f"{shown(name)} ({show(count)})" for name, count in ordered if count) + "."


def _advice(in_git: bool) -> str:
    keep = "List data and results in .gitignore" if in_git else "Keep data and results out of the directory"
    return (
        f"{keep} (docs/how-to/data.md has data sets, and directories that are mounted), or submit one script: "
        "--package-path FILE.py"
    )
