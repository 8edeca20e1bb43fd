"""Readers of what a program's files declare: pyproject.toml, scripts with a block of PEP 723, environment.yml."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from .output import Refused
from .requirement_files import decoded
from .tree import SourceTree

_SCRIPT = re.compile(r"(?m)^# /// script[ \t]*$\s(?P<content>(^#(| .*)$\s)+)^# ///[ \t]*$")
_ITEM = re.compile(r"(?P<indent>\s*)-\s+(?P<text>.+)")
_YAML_COMMENT = re.compile(r"\s+#.*$")
_SETUPTOOLS = (None, "setuptools.build_meta", "setuptools.build_meta:__legacy__")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*([^;\[]*)")


class Declaration(NamedTuple):
    """The dependencies of a table. `dependencies`: None where they are dynamic."""

    dependencies: list[str] | None
    requires_python: str
    indexes: list[str]
    """URLs of further indexes that the project names."""


def pyproject(tree: SourceTree, path: Path) -> Declaration:
    """Read a pyproject.toml. Raises Refused."""
    data = toml(path)
    shown = path.relative_to(tree.root).as_posix()
    project = _table(data, "project")
    _check_sources(tree, data, path, shown)
    dynamic = "dependencies" in (project.get("dynamic") or ())
    needs = None if dynamic else [str(need) for need in project.get("dependencies") or ()]
    for need in needs or ():
        _check(tree, need, shown)
    return Declaration(needs, str(project.get("requires-python") or ""), _indexes(data))


def script(tree: SourceTree, path: Path) -> Declaration:
    """Read the block of a script. Raises Refused."""
    shown = path.relative_to(tree.root).as_posix()
    found = _SCRIPT.search(decoded(path, shown).replace("\r\n", "\n") + "\n")
    if found is None:
        raise Refused(f"{shown} has no block `# /// script`.")
    lines = found["content"].splitlines()
    data = _parsed("".join(f"{line[2:] if line.startswith('# ') else line[1:]}\n" for line in lines), shown)
    _check_sources(tree, data, path, shown)
    needs = [str(need) for need in data.get("dependencies") or ()]
    for need in needs:
        _check(tree, need, shown)
    return Declaration(needs, str(data.get("requires-python") or ""), _indexes(data))


def needs_setuptools_alone(directory: Path) -> bool:
    """Whether a project can be built by any setuptools that is there."""
    path = directory / "pyproject.toml"
    try:
        build = _table(toml(path), "build-system") if path.exists() else {}
    except Refused:
        return False
    found = [_REQUIREMENT.match(str(need)) for need in build.get("requires") or ()]
    names = all(need is not None and need[1].lower() in ("setuptools", "wheel") for need in found)
    return (
        names
        and build.get("build-backend") in _SETUPTOOLS
        and not any(need and set(need[2]) & set("<=~") - {"="} and not need[2].startswith(">=") for need in found)
    )


def conda(text: str) -> tuple[list[str], list[str]]:
    """The lines of pip of an environment.yml, and its other packages."""
    of_pip: list[str] = []
    others: list[str] = []
    pip_indent = -1
    for indent, item in _items(text):
        if 0 <= pip_indent < indent:
            of_pip.append(item)
        elif re.fullmatch(r"pip\s*:", item):
            pip_indent = indent
        else:
            pip_indent = -1
            others.append(item)
    return of_pip, [other for other in others if re.split(r"[=<> ]", other)[0] != "pip"]


def toml(path: Path) -> dict[str, Any]:
    """Raises Refused."""
    return _parsed(decoded(path, path.name), path.name)


def libraries() -> str:
    """The directory with what the pip of this Python brings; "" if it has none."""
    pip = find_spec("pip")
    return str(Path(pip.origin).with_name("_vendor")) if pip is not None and pip.origin is not None else ""


def requires_python(wanted: str, version: str) -> bool:
    """Whether a version of Python is one of those; True where nothing is installed that can tell."""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except (ImportError, SyntaxError, TypeError):  # the last two: it is for newer Pythons
        return True
    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidSpecifier as error:
        raise Refused(f"requires-python: {error}.") from error


def _parsed(text: str, shown: str) -> dict[str, Any]:
    try:
        reader = importlib.import_module("tomllib" if find_spec("tomllib") else "tomli")  # before 3.11 pip's
    except ImportError as error:
        raise Refused(f"{shown} cannot be read: this Python has neither tomllib nor pip.") from error
    try:
        return dict(reader.loads(text))
    except ValueError as error:
        raise Refused(f"{shown} is not TOML: {error}.") from error


def _table(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """A table of tables; empty where it is not there."""
    for name in names:
        value = data.get(name)
        data = value if isinstance(value, dict) else {}
    return data


def _indexes(data: dict[str, Any]) -> list[str]:
    """The indexes of uv and of poetry that a project names."""
    named = [*(_table(data, "tool", "uv").get("index") or ()), *(_table(data, "tool", "poetry").get("source") or ())]
    return [str(index["url"]) for index in named if isinstance(index, dict) and "url" in index]


def _check_sources(tree: SourceTree, data: dict[str, Any], path: Path, shown: str) -> None:
    """Raises Refused for a source of uv, or a path of poetry, that leads out of the tree."""
    tables = [_table(data, "tool", "uv", "sources"), _table(data, "tool", "poetry", "dependencies")]
    for table in tables:
        for source in table.values():
            for entry in source if isinstance(source, list) else [source]:
                if isinstance(entry, dict) and "path" in entry:
                    tree.path(str(entry["path"]), shown, path.parent)


def _check(tree: SourceTree, need: str, shown: str) -> None:
    _, at, url = need.partition("@")
    if at and "file:" in url:
        tree.url(url.partition(";")[0].strip(), shown)


def _items(text: str) -> Iterator[tuple[int, str]]:
    """The items below `dependencies:`, with their indentation."""
    inside = False
    for line in text.splitlines():
        plain = _YAML_COMMENT.sub("", line.rstrip())
        if not plain.strip() or plain.lstrip().startswith("#"):
            continue
        item = _ITEM.fullmatch(plain)
        if not inside:
            inside = plain.rstrip().replace(" ", "") == "dependencies:"
        elif item is None:
            return
        else:
            text = item["text"].strip()
            is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
            yield len(item["indent"]), text[1:-1] if is_quoted else text
