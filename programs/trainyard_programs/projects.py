"""Dependencies of a program as its project declares them: which files say so, and the steps that install them.

The files go to the agent as they are, and its installer (uv, or pip) reads them there. What is read here is which of
them there are, and the paths in them: what they need must be uploaded, and nothing outside of the project is.
"""

import configparser
import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trainyard_programs import bounded_file
from trainyard_protocol.errors import InvalidArgument, shown

REQUIREMENTS, PYPROJECT, UV_LOCK, PYLOCK = "requirements.txt", "pyproject.toml", "uv.lock", "pylock.toml"
SETUP_FILES = ("setup.py", "setup.cfg")
CONDA_FILES = ("environment.yml", "environment.yaml", "conda.yaml", "conda.yml")

_MAX_BYTES = 2**20
_MAX_LOCK_BYTES = 2**25
_BOMS = ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_INCLUDE = re.compile(r"(?:-r|-c|--requirements?|--constraints?)(?:\s*=\s*|\s+|(?<=-[rc]))(\S+)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s*=\s*|\s+)(\S+)")
_FIND_LINKS = re.compile(r"(?:-f|--find-links)(?:\s*=\s*|\s+)(\S+)")
_BY_NAME = re.compile(r"[A-Za-z0-9][\w.-]*\s*(?:\[[^]]*\]\s*)?@\s*(file:\S+)")
_EXTRAS = re.compile(r"\[[^]/]*\]$")
_CREDENTIALS = re.compile(r"https?://(?!git@)[^/\s@$]+@")
_SCRIPT_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The block of inline metadata of a script. Source: PEP 723."""

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Project:
    """A directory that declares dependencies.

    `steps` install them, with paths relative to `root`; `files` are those that the steps read, relative to `root`.
    `is_built`: the project itself is a package, which is built and installed. `is_local`: the declarations name
    packages by their directories. `listed` are the declaring files, for people.
    """

    root: Path
    steps: tuple[Step, ...] = ()
    files: tuple[str, ...] = ()
    is_built: bool = False
    is_local: bool = False
    listed: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all of its files are needed to install what it declares."""
        return self.is_built or self.is_local


def find(directories: Sequence[Path]) -> Project | None:
    """The project of the first directory that declares one; of a member of a workspace of uv, the workspace, which has
    its lock. Raises InvalidArgument, with file and line, for declarations that cannot be read or lead out of the
    directory."""
    for place, directory in enumerate(directories):
        project = of(directory)
        if project is not None:
            locked = any(step["what"] == "lock" for step in project.steps)
            above = () if locked else directories[place + 1 :]
            return next(filter(None, (_workspace(root, project) for root in above)), project)
    return None


def _workspace(root: Path, member: Project) -> Project | None:
    """The workspace of uv in a directory above a project, with the lock of that member; None if it is none."""
    name = str((_toml(member.root / PYPROJECT).get("project") or {}).get("name", ""))
    if "workspace" not in _tool(_toml(root / PYPROJECT), "uv") or name not in _locked(root / UV_LOCK):
        return None
    directory = member.root.relative_to(root).as_posix()
    steps: list[Step] = [{"what": "lock", "file": UV_LOCK, "package": name}]
    if member.is_built:
        steps.append({"what": "project", "directory": directory, "dependencies": False})
    return Project(root, tuple(steps), (UV_LOCK, PYPROJECT), member.is_built, True, (f"{UV_LOCK} (of {name})",))


def of(root: Path) -> Project | None:
    """The project that a directory declares: a lock to the letter, or else requirements.txt, pyproject.toml, setup.py
    and setup.cfg, or else the environment of conda. None if there is none of them. Raises InvalidArgument."""
    pyproject = _toml(root / PYPROJECT)
    is_built = _is_built(root, pyproject)
    project = pyproject.get("project")
    table = project if isinstance(project, dict) else {}
    lock = next((name for name in (UV_LOCK, PYLOCK) if (root / name).is_file()), "")
    sources = _locked(root / lock) if lock == UV_LOCK else {}
    if lock == UV_LOCK and table.get("name") not in sources:
        lock = ""  # left over, or not made yet: what the project declares counts
    steps: list[Step] = []
    files: list[str] = []
    is_local = _has_local_sources(root, pyproject)
    if lock:
        steps.append({"what": "lock", "file": lock})
        files += [lock, *([PYPROJECT] if pyproject else [])]
        is_local |= _names_local(sources)
        steps += [_project_step(dependencies=False)] if is_built else []
        return Project(root, tuple(steps), tuple(files), is_built, is_local, (lock,))
    listed: list[str] = []

    def install(what: str, file: str) -> None:
        steps.append({"what": what, "file": file})
        files.append(file)
        listed.append(file)

    if (root / REQUIREMENTS).is_file():
        install("requirements", REQUIREMENTS)
        read, has_local = _requirement_files(root, REQUIREMENTS)
        files += read
        is_local |= has_local
    is_static = bool(table) and "dependencies" not in table.get("dynamic", ())
    if is_static and table.get("dependencies"):
        install("pyproject", PYPROJECT)
    elif not is_built and _tool(pyproject, "poetry").get("dependencies"):
        install("poetry", PYPROJECT)
    if is_built:
        declaring = [PYPROJECT] if pyproject else [name for name in SETUP_FILES if (root / name).is_file()]
        steps.append(_project_step(dependencies=not is_static))
        files += [name for name in (PYPROJECT, *SETUP_FILES) if (root / name).is_file()]
        listed += [name for name in declaring if name not in listed]
    if not steps and (conda := next((name for name in CONDA_FILES if (root / name).is_file()), "")):
        install("conda", conda)
    if not steps and not table:
        return None
    return Project(root, tuple(steps), tuple(dict.fromkeys(files)), is_built, is_local, tuple(listed))


def of_script(script: Path) -> Project | None:
    """The project of a script that declares its dependencies inline, which are then all that it has. None for any
    other script. Raises InvalidArgument for a block that is not TOML."""
    try:
        found = list(_SCRIPT_BLOCK.finditer(script.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")))
    except OSError as error:
        raise InvalidArgument(f"{script}: cannot be read: {error.strerror}.") from error
    if not found:
        return None
    if len(found) > 1:
        raise InvalidArgument(f"{script}: has several blocks `# /// script`; one script has one (PEP 723).")
    lines = found[0]["content"].splitlines()
    try:
        block = tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines))
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{script}: its block `# /// script` is not TOML: {error}.") from error
    is_local = _has_local_sources(script.parent, block)
    words = f"{script.name} (its block `# /// script`)"
    return Project(script.parent, ({"what": "script", "file": script.name},), (script.name,), False, is_local, (words,))


def _project_step(*, dependencies: bool) -> Step:
    return {"what": "project", "directory": ".", "dependencies": dependencies}


def _is_built(root: Path, pyproject: Mapping[str, Any]) -> bool:
    """Whether a project is a package, by the rules of uv and poetry, a setup.py or the metadata of a setup.cfg."""
    if _tool(pyproject, "poetry").get("package-mode") is False:
        return False
    managed = _tool(pyproject, "uv").get("package")
    if isinstance(managed, bool):
        return managed
    if (root / "setup.py").is_file():
        return True
    has_metadata = _setup_cfg(root / "setup.cfg") or "project" in pyproject or bool(_tool(pyproject, "poetry"))
    return has_metadata and ("build-system" in pyproject or _setup_cfg(root / "setup.cfg"))


def _setup_cfg(path: Path) -> bool:
    """Whether a setup.cfg declares a package, and not only the settings of tools."""
    if not path.is_file():
        return False
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(_text(path))
    except configparser.Error as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.message}.") from error
    return parser.has_option("metadata", "name")


def _tool(pyproject: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _table(_table(pyproject, "tool"), name)


def _has_local_sources(root: Path, pyproject: Mapping[str, Any]) -> bool:
    """Whether dependencies of uv's or poetry's tables are directories of the project. Raises InvalidArgument for one
    that leads out of it."""
    sources = {**_table(_tool(pyproject, "uv"), "sources"), **_table(_tool(pyproject, "poetry"), "dependencies")}
    has_local = False
    for name, source in sources.items():
        for each in source if isinstance(source, list) else [source]:
            if isinstance(each, dict) and "path" in each:
                _inside(root, "", str(each["path"]), f"{root / PYPROJECT}: {shown(name)}")
                has_local = True
    return has_local


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name)
    return value if isinstance(value, dict) else {}


def _locked(lock: Path) -> Mapping[str, Mapping[str, Any]]:
    """The sources of the packages of a uv.lock, by their names."""
    packages = _toml(lock, _MAX_LOCK_BYTES).get("package")
    tables = [each for each in packages if isinstance(each, dict)] if isinstance(packages, list) else []
    return {str(each.get("name")): each["source"] for each in tables if isinstance(each.get("source"), dict)}


def _names_local(sources: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a uv.lock has packages by their directories, beside the project itself."""
    kinds = ("editable", "directory", "virtual", "path")
    return any(source.get(kind, ".") != "." for source in sources.values() for kind in kinds)


def _toml(path: Path, most: int = _MAX_BYTES) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(_text(path, most))
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path}: is not TOML: {error}.") from error


def _requirement_files(root: Path, name: str) -> tuple[list[str], bool]:
    """A file in pip's format and those that it includes, relative to the root; and whether it names local packages.

    Raises InvalidArgument, with file and line, for a path that is not there or leads out of the root, and for
    credentials.
    """
    files: list[str] = []
    has_local = False
    waiting = [name]
    while waiting:
        current = waiting.pop(0)
        if current in files:
            continue
        files.append(current)
        for number, line in _lines(root / current):
            where = f"{root / current}:{number}"
            if _CREDENTIALS.search(line):
                raise InvalidArgument(
                    f"{where}: has credentials, which would be uploaded with the program. Write "
                    "https://${USER}:${TOKEN}@... and give the variables by --set-secrets, or let the operator set the "
                    "index of the agent."
                )
            included = _INCLUDE.fullmatch(line)
            path = included[1] if included else _local_path(line, root / posixpath.dirname(current))
            if not path or re.match(r"https?://", path):
                continue
            # pip reads included files relative to the file, and packages relative to the current directory.
            base = posixpath.dirname(current) if included else ""
            inside = _inside(root, base, path, where)
            if included:
                waiting.append(inside)
            else:
                has_local = True
    return files, has_local


def _local_path(line: str, beside: Path) -> str:
    """The path of a local package or directory of packages that a line names; "" if it names none."""
    requirement = line.partition(" ;")[0].strip()
    for pattern in (_EDITABLE, _FIND_LINKS, _BY_NAME):
        if match := pattern.match(requirement):
            return _plain_path(match[1])
    word = _EXTRAS.sub("", requirement.split(" --")[0].strip())
    if word.startswith(("./", "../", "/", "file:")) or word in (".", ".."):
        return _plain_path(word)
    leads_up = ".." in word.split("/")  # whether it is there says nothing about the program
    is_path = not word.startswith("-") and "/" in word and "@" not in word and "://" not in word and not leads_up
    return word if is_path and (beside / word).exists() else ""


def _plain_path(word: str) -> str:
    """The path of a URL or of a word; "" for an address elsewhere."""
    word = _EXTRAS.sub("", word)
    if word.startswith("file:"):
        return unquote(urlsplit(word).path)
    return "" if re.match(r"[a-z+]+(?:://|\+)", word) or word.startswith("git@") else word


def _inside(root: Path, base: str, path: str, where: str) -> str:
    """A path relative to the root. Raises InvalidArgument for one outside of it, and for one that is not there."""
    normal = posixpath.normpath(posixpath.join(base, path))
    if path.startswith("/"):
        try:
            normal = Path(path).relative_to(root.resolve()).as_posix()
        except ValueError:
            normal = ".."
    if normal == ".." or normal.startswith("../"):
        raise InvalidArgument(
            f"{where}: {shown(path)} is outside {root}, and only {root} is uploaded. Move it there, or build it "
            "and give the package with --packages."
        )
    if not (root / normal).exists():
        raise InvalidArgument(f"{where}: {shown(path)} does not exist.")
    return normal


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines without comments; one that ends in a backslash goes on. Each with its first number."""
    begun, parts = 0, []
    for number, raw in enumerate(_text(path).splitlines(), 1):
        begun = begun or number
        line = _COMMENT.sub("", raw).strip()
        parts.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            if joined := " ".join(filter(None, parts)):
                yield begun, joined
            begun, parts = 0, []
    if joined := " ".join(filter(None, parts)):
        yield begun, joined


def _text(path: Path, most: int = _MAX_BYTES) -> str:
    """The text of a file, in UTF-8 or what its first bytes say. Raises InvalidArgument."""
    data = bounded_file.read(path, most)
    encoding = next((encoding for bom, encoding in _BOMS if data.startswith(bom)), "utf-8-sig")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidArgument(f"{path}:{line}: is not text in UTF-8 or UTF-16. Save it as UTF-8.") from error
