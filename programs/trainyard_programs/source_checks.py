"""Checks of Python source before it is submitted: its syntax, its imports, and what a notebook installs by itself.

Every error names file and line. Nothing is run or imported.
"""

import ast
import json
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument

_PIP = re.compile(r"(?m)^\s*[!%]\s*(?:python3?\s+-m\s+|uv\s+)?pip3?\s+install\s+(.+)$|(?:^|\s)pip3?\s+install\s+(.+)")
_PLOTTING = re.compile(r"(?m)^\s*%\s*(?:matplotlib|pylab)\b|^(?:matplotlib|pylab)\b")
_OPTIONS_WITH_VALUES = ("-r", "-c", "-i", "-f", "-t", "--index-url", "--extra-index-url", "--find-links", "--target")
_LONGEST_NAME = 255
_MAX_NOTEBOOK_BYTES = 2**27
_MAX_SOURCES = 500
_PYTHON_2 = re.compile(r"^\s*(print\s+[^\s(=]|exec\s+['\"]|raise\s+\w+\s*,)")
_NEWER = re.compile(
    r"^\s*type\s+\w+.*=|\b(?:def|class)\s+\w+\s*\[|^\s*except\*?\s+[\w.]+\s*,|\bt[rR]?['\"]|[fF][rR]?['\"]|^\s*lazy\s"
)
"""Lines that a Python later than 3.11 may accept: types of PEP 695, strings of PEP 701 and 750, `except A, B:` of PEP
758, lazy imports of PEP 810."""


@dataclass(slots=True)
class Source:
    """Python sources as they were read. `files` are the local files that a script imports, itself first; of a module of
    a package those beside the package. `has_magics`: a notebook that was exported as a script; `needs` the requirements
    that it installs by itself. `notes` are sentences about what may fail."""

    files: list[Path] = field(default_factory=list)
    has_magics: bool = False
    needs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def script(path: Path) -> Source:
    """Check a script that runs as `python FILE`, and the local files that it imports.

    Raises InvalidArgument for a syntax error and a relative import.
    """
    directory, found = path.parent, Source()
    waiting = [path]
    while waiting:
        current = waiting.pop(0)
        if current in found.files:
            continue
        found.files.append(current)
        tree = _parsed(current, found) if current.suffix == ".py" else None
        if tree is None:
            continue
        if current.parent == directory:
            _refuse_relative_imports(current, tree, directory)
        _read_magics(tree, found)
        for imported in _imports(tree):
            waiting += _local_files(directory, imported.partition(".")[0])
    return found


def module(path: Path, name: str) -> Source:
    """Check the module of a package, in the file `path`, and the modules of the package that it imports: their syntax,
    and that no relative import leaves the package. Raises InvalidArgument."""
    top, found = name.partition(".")[0], Source()
    depth = name.count(".") + (1 if path.stem == "__main__" else 0)
    root = path.parents[depth]
    imports: dict[Path, set[str]] = {}
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in imports:
            continue
        tree = _parsed(current, found)
        imports[current] = _top_packages(tree)
        if tree is None:
            continue
        package = current.relative_to(root).parent.parts
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level > len(package):
                raise InvalidArgument(
                    f"{current}:{node.lineno}: `{_written(node)}` is a relative import beyond the package {top}. "
                    "Import by the full name instead."
                )
            waiting += [file for parts in _modules(node, package) if parts[:1] == (top,) for file in _file(root, parts)]
    found.files = _beside(root, top, imports)
    return found


def notebook(path: Path) -> tuple[str, ...]:
    """The requirements that a notebook installs by itself. Raises InvalidArgument for a file that is no notebook of
    Python."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_NOTEBOOK_BYTES + 1)
        content = json.loads(text) if len(text) <= _MAX_NOTEBOOK_BYTES else None
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path}: is not a notebook: {error}.") from error
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(cells, list):
        raise InvalidArgument(f"{path}: is not a notebook of format 4 (JSON with cells), or is larger than 128 MiB.")
    metadata = content.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    language = str(kernel.get("language", "python")) if isinstance(kernel, dict) else "python"
    if language.lower() != "python":
        raise InvalidArgument(f"{path}: is a notebook of {language}; only those of Python run as jobs.")
    code = (cell.get("source", "") for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code")
    sources = ("".join(map(str, source)) if isinstance(source, list) else str(source) for source in code)
    return tuple(dict.fromkeys(word for source in sources for word in _installed(source)))


def named_files(path: Path, directories: Sequence[Path]) -> Iterator[tuple[int, str]]:
    """The line and text of each string in a Python file that is the relative path of a file below a directory. A file
    that this Python cannot parse has none: no program needs all that lies beside it."""
    try:
        tree = _parsed(path, Source())
    except InvalidArgument:
        return
    for node in ast.walk(tree) if tree is not None else ():
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        name = node.value
        is_path = len(name) <= _LONGEST_NAME and ("/" in name or "." in name) and name.isprintable()
        if is_path and not name.startswith("/") and any(_is_file(base / name) for base in directories):
            yield node.lineno, name


def has_main_guard(path: Path) -> bool:
    """Whether a file has `if __name__ == "__main__":`. Raises InvalidArgument for a syntax error."""
    tree = _parsed(path, Source())
    return tree is not None and any(
        isinstance(node, ast.If) and "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        for node in tree.body
    )


def _parsed(path: Path, found: Source) -> ast.Module | None:
    """The file as a tree. None, with a note, where a newer Python may read it: that of the job may be one. Raises
    InvalidArgument for a file that cannot be read or has a syntax error."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error
    try:
        with warnings.catch_warnings():
            # Warnings of the user's own strings, which Python repeats in the job's log.
            warnings.simplefilter("ignore")
            return ast.parse(source, str(path))
    except SyntaxError as error:
        message = _syntax_error(path, error)
        if not _NEWER.search(error.text or "") or _PYTHON_2.match(error.text or ""):
            raise InvalidArgument(message) from error
        found.notes.append(f"{message.partition(chr(10))[0]} It runs where the job's Python is newer.")
        return None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "it is too large or too deeply nested"
        raise InvalidArgument(f"{path}: is not Python source: {reason}.") from error


def _modules(node: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The modules that a statement may import, by the parts of their names."""
    if isinstance(node, ast.Import):
        yield from (tuple(alias.name.split(".")) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else ()
        base = (*base, *(node.module.split(".") if node.module else ()))
        yield base
        yield from ((*base, alias.name) for alias in node.names)


def _file(root: Path, name: tuple[str, ...]) -> list[Path]:
    base = root.joinpath(*name)
    return [file for file in (base.with_name(f"{base.name}.py"), base / "__init__.py") if file.is_file()][:1]


def _beside(root: Path, package: str, imports: Mapping[Path, set[str]]) -> list[Path]:
    """The modules and packages beside a package that its modules import, and those that these import. `imports`: the
    top packages that files which were read import."""
    found = {package: root / package}
    waiting = [root / package]
    while waiting:
        place = waiting.pop()
        for source in sorted(place.rglob("*.py"))[:_MAX_SOURCES] if place.is_dir() else [place]:
            names = imports[source] if source in imports else _imported_anywhere(source)
            for name in names - found.keys():
                there = next((path for path in (root / f"{name}.py", root / name) if path.exists()), None)
                if there is not None and (there.is_file() or any(there.glob("*.py"))):
                    found[name] = there
                    waiting.append(there)
    return [found[name] for name in sorted(found.keys() - {package})]


def _imported_anywhere(source: Path) -> set[str]:
    """The top packages that a file imports; none of a file in another language, which nothing may import."""
    try:
        return _top_packages(_parsed(source, Source()))
    except InvalidArgument:
        return set()


def _top_packages(tree: ast.Module | None) -> set[str]:
    return {name.partition(".")[0] for name in _imports(tree)} if tree is not None else set()


def _is_file(path: Path) -> bool:
    """Whether a file is there; False too for a text that is no path, and where nobody may look."""
    try:
        return path.is_file()
    except OSError:
        return False


def _syntax_error(path: Path, error: SyntaxError) -> str:
    line = (error.text or "").rstrip("\n")
    shown = "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in line)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    message = f"{path}:{error.lineno or 1}: is not valid Python {version}: {error.msg}."
    if _PYTHON_2.match(line):
        message += " This looks like Python 2: convert it first."
    elif line.lstrip().startswith(("%", "!")):
        message += " Lines with % and ! work in a notebook only: `jupyter nbconvert --to script` converts them."
    if shown.strip():
        column = max((error.offset or 1) - 1, 0)
        indent = "".join(c if c == "\t" else " " for c in shown[:column])
        message += f"\n    {shown}\n    {indent}^"
    return message


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def _local_files(directory: Path, name: str) -> list[Path]:
    """The files of a module or package in the script's directory."""
    if (directory / f"{name}.py").is_file():
        return [directory / f"{name}.py"]
    package = directory / name
    if not package.is_dir() or not any(package.rglob("*.py")):
        return []
    return [
        path
        for path in sorted(package.rglob("*"))
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(package).parts)
    ]


def _refuse_relative_imports(path: Path, tree: ast.Module, directory: Path) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            package = directory.resolve().name
            plain = f"from {node.module} import ..." if node.module else "import ..."
            raise InvalidArgument(
                f"{path}:{node.lineno}: `{_written(node)}` is a relative import, which works in a package only. "
                f"Write `{plain}`, or run it as part of a package: --package-path {directory} --module-name "
                f"{package}.{path.stem}"
            )


def _written(node: ast.ImportFrom) -> str:
    return f"from {'.' * node.level}{node.module or ''} import {', '.join(alias.name for alias in node.names)}"


def _read_magics(tree: ast.Module, found: Source) -> None:
    """Collect what a notebook that was exported as a script calls of IPython."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "get_ipython":
            found.has_magics = True
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "get_ipython":
            words = [str(argument.value) if isinstance(argument, ast.Constant) else "" for argument in node.args]
            found.needs += _installed(" ".join(words))


def _installed(source: str) -> list[str]:
    """The requirements that commands of pip in a cell, or in a call, install, without pip's options; and matplotlib for
    the magic that loads it."""
    needs = ["matplotlib"] if _PLOTTING.search(source) else []
    for match in _PIP.finditer(source):
        text = match[1] or match[2]
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            words = text.split()
        is_value = False
        for word in words:
            if is_value or word.startswith("-"):
                is_value = word in _OPTIONS_WITH_VALUES and not is_value
            elif re.match(r"[A-Za-z0-9]", word) and not word.endswith((".txt", ".whl")):
                needs.append(word)
    return needs
