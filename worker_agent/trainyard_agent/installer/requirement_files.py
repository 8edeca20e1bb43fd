"""Requirement files as pip reads them, for uv: without what it takes only on its command line."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .indexes import Indexes
from .output import Refused
from .tree import SourceTree

_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OF_ONE_PACKAGE = re.compile(r"\s+--(?!hash\b)(config-settings?|global-option|install-option)[= ].*$")
_EDITABLE = re.compile(r"(?:-e|--editable)[ =]\s*(.+)")
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^\]]*\])?\s*@\s*)(\S.*)")
_LOCATION = re.compile(r"(?P<path>[^\[;]*?)(?P<extras>\[[^\]]*\])?(?P<rest>\s*(?:;.*|\s--.*)?)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_LONG = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-i": "--index-url",
    "--pypi-url": "--index-url",
    "-f": "--find-links",
}
_WITH_VALUE = {
    *("--requirement", "--constraint", "--index-url", "--extra-index-url", "--find-links"),
    *("--trusted-host", "--no-binary", "--only-binary", "--use-feature"),
}
_FOR_UV = ("--no-binary", "--only-binary")
_NOTHING = ("--prefer-binary", "--use-feature", "--use-pep517", "--require-hashes", "--process-dependency-links")
"""Options of pip alone; uv requires all hashes where it finds one, if it is told so."""

_MOST_FILES, _MOST_BYTES = 200, 1 << 22


@dataclass
class Requirements:
    """The content of the files. `path`: the first of those for uv, beside the originals. `variables`: the names of
    those that they refer to."""

    path: Path
    indexes: Indexes
    hashes: bool = False
    variables: set[str] = field(default_factory=set)


class RequirementReader:
    """Reads the requirement files of a tree, and writes what uv is given."""

    def __init__(self, tree: SourceTree, indexes: Indexes, environment: Mapping[str, str]) -> None:
        self._tree = tree
        self._environment = environment
        self._written: dict[Path, Path] = {}
        self._found = Requirements(tree.root, indexes.copy())

    def read(self, path: Path) -> Requirements:
        """Raises Refused for what leads out of the tree, and for what is no text."""
        self._found.path = self._file(path)
        return self._found

    def _file(self, path: Path) -> Path:
        if path in self._written:
            return self._written[path]
        if len(self._written) >= _MOST_FILES:
            raise Refused(f"{self._shown(path)}: requirements in more than {_MOST_FILES} files are not read.")
        self._written[path] = path.with_name(f".trainyard-{len(self._written)}.txt")
        lines = [self._line(number, line, path) for number, line in logical_lines(decoded(path, self._shown(path)))]
        self._written[path].write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")
        return self._written[path]

    def _line(self, number: int, line: str, path: Path) -> str:
        """The line that uv is given in place of one."""
        where = f"{self._shown(path)}, line {number}"
        self._found.variables.update(_VARIABLE.findall(line))
        if editable := _EDITABLE.fullmatch(line):  # with its markers, as they are
            return f"-e {self._requirement(_OF_ONE_PACKAGE.sub('', editable[1]), path, where)}"
        if line.startswith("-"):
            return self._options(line, path, where)
        return self._requirement(_OF_ONE_PACKAGE.sub("", line), path, where)

    def _options(self, line: str, path: Path, where: str) -> str:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise Refused(f"{where}: {line} cannot be read: {error}.") from error
        kept = []
        while words:
            name, value = _split(words)
            if name in ("--requirement", "--constraint"):
                target = value
                if not _URL.match(value) or value.startswith("file:"):
                    plain = value.partition(":")[2] if value.startswith("file:") else value
                    target = self._file(self._tree.path(self._expanded(plain), where, path.parent)).as_posix()
                kept.append(f"{'-r' if name == '--requirement' else '-c'} {target}")
            elif name in _FOR_UV:
                kept.append(f"{name} {value}")
            elif not self._setting(name, self._expanded(value), path, where):
                raise Refused(f"{where}: {name} is not an option of requirements.")
        return "\n".join(kept)

    def _setting(self, name: str, value: str, path: Path, where: str) -> bool:
        indexes = self._found.indexes
        if name == "--index-url":
            indexes.default, indexes.none = self._location(value, path, where), False
        elif name == "--extra-index-url":
            indexes.extra.append(self._location(value, path, where))
        elif name == "--find-links":
            indexes.links.append(self._location(value, path, where))
        elif name == "--no-index":
            indexes.none = True
        elif name == "--trusted-host":
            indexes.trusted.append(value)
        elif name == "--pre":
            indexes.pre = True
        elif name == "--require-hashes":
            self._found.hashes = True
        return name in (
            *("--index-url", "--extra-index-url", "--find-links", "--no-index", "--trusted-host", "--pre"),
            *_NOTHING,
        )

    def _location(self, value: str, path: Path, where: str) -> str:
        """That of an index or of links."""
        if _URL.match(value):
            return self._tree.url(value, where)
        return str(self._local(value, path, where))

    def _requirement(self, line: str, path: Path, where: str) -> str:
        """A requirement with its path, if it names one, made absolute."""
        named = _NAMED.fullmatch(line)
        name, location = (named[1], named[2]) if named else ("", line)
        match = _LOCATION.fullmatch(location)
        target = self._expanded(match["path"].strip() if match else location)
        if match is None or not _is_location(target):
            return line
        extras, rest = match["extras"] or "", match["rest"]
        if not _URL.match(target):
            local = str(self._local(target, path, where))
        elif (local := self._tree.url(target, where)) == target:
            return line  # with its variables: what is written has no secrets
        if name and not _URL.match(local):
            local = Path(local).as_uri()
        return f"{name}{local}{extras}{rest}"

    def _local(self, value: str, path: Path, where: str) -> Path:
        """Find a path: for pip it is relative to where pip is started, and people write it relative to its file too."""
        try:
            return self._tree.path(value, where)
        except Refused:
            if (path.parent / value).exists():
                return self._tree.path(value, where, path.parent)
            raise

    def _expanded(self, text: str) -> str:
        self._found.variables.update(_VARIABLE.findall(text))
        return _VARIABLE.sub(lambda match: self._environment.get(match[1], match[0]), text)

    def _shown(self, path: Path) -> str:
        try:
            return path.relative_to(self._tree.root).as_posix()
        except ValueError:
            return path.name


def decoded(path: Path, shown: str) -> str:
    """The text of a file: UTF-8, or as its byte order mark says. Raises Refused."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise Refused(f"{shown} has more than {_MOST_BYTES >> 20} MB.")
    marks = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
    encoding = next((name for mark, name in marks if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except ValueError:
        return content.decode("latin-1")  # comments of another time; names of packages are ASCII


def logical_lines(text: str) -> list[tuple[int, str]]:
    """The lines with their numbers, without comments; what a backslash continues is one."""
    lines: list[tuple[int, str]] = []
    begun, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start if begun else number
        if line.endswith("\\") and not _COMMENT.match(line):
            begun += f"{line[:-1].strip()} "
            continue
        if whole := _COMMENT.sub("", begun + line.strip()).strip():
            lines.append((start, whole))
        begun = ""
    if rest := _COMMENT.sub("", begun).strip():
        lines.append((start, rest))
    return lines


def _split(words: list[str]) -> tuple[str, str]:
    """The first option of the words, which lose it, by its long name."""
    word = words.pop(0)
    name, has_value, value = word.partition("=")
    if not word.startswith("--"):
        name, value = word[:2], word[2:].lstrip("=")
        has_value = value
    name = _LONG.get(name, name)
    if name in _WITH_VALUE and not has_value:
        value = words.pop(0) if words else ""
    return name, value


def _is_location(text: str) -> bool:
    return bool(_URL.match(text)) or text.startswith((".", "~")) or "/" in text or text.lower().endswith(_ARCHIVES)
