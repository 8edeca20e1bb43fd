"""Checks of Python source before it is submitted: its syntax, its imports, and what an exported notebook calls.

Every error names file and line. Nothing is run or imported.
"""

import ast
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard_cli.submission import requirements
from trainyard_protocol.errors import InvalidArgument

_PIP = re.compile(r"(?:^|\s)pip3?\s+install\s+(.+)")
_QUIET = frozenset({"-q", "-qq", "--quiet", "-U", "--upgrade", "--user"})
_DISPLAY = frozenset({"matplotlib", "config", "load_ext", "reload_ext", "autoreload", "pylab"})
"""Magics that have no effect on what a program computes."""

_LONGEST_NAME = 255
_CODE_MAGICS = frozenset({"time", "capture"})
_SHELL_MAGICS = frozenset({"bash", "sh"})
_PYTHON_2 = re.compile(r"^\s*(print\s+[^\s(=]|exec\s+['\"]|raise\s+\w+\s*,)")


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A script as it was read. `files` are the local files that it imports, itself first, relative to its directory;
    `needs` the requirements that a notebook installs by itself."""

    files: tuple[str, ...]
    is_notebook: bool = False
    needs: tuple[str, ...] = ()


@dataclass(slots=True)
class _Found:
    is_notebook: bool = False
    needs: list[str] = field(default_factory=list)


def parse(path: Path) -> ast.Module:
    """Parse a Python file. Raises InvalidArgument for one that cannot be read or has a syntax error."""
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
        raise InvalidArgument(_syntax_error(path, error)) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidArgument(f"{path}: is not Python source: {error}.") from error


def script(path: Path) -> ScriptSource:
    """Check a script that runs as `python FILE`, and the local files that it imports.

    Raises InvalidArgument for a syntax error, a relative import, and a notebook's command that cannot run in a job.
    """
    directory, content = path.parent, _Found()
    files: dict[str, None] = {}
    waiting = [path]
    while waiting:
        current = waiting.pop(0)
        name = current.relative_to(directory).as_posix()
        if name in files:
            continue
        files[name] = None
        if current.suffix != ".py":
            continue
        tree = parse(current)
        if current.parent == directory:
            _refuse_relative_imports(current, tree, directory)
        _read_notebook(current, tree, content)
        for imported in _imports(tree):
            waiting += _local_files(directory, imported.partition(".")[0])
    return ScriptSource(tuple(files), content.is_notebook, tuple(dict.fromkeys(content.needs)))


def check_module(path: Path, module: str) -> None:
    """Check the module of a package, in the file `path`, and the modules of the package that it imports: their syntax,
    and that no relative import leaves the package. Raises InvalidArgument."""
    top = module.partition(".")[0]
    depth = module.count(".") + (1 if path.stem == "__main__" else 0)
    root = path.parents[depth]
    visited: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in visited:
            continue
        visited.add(current)
        tree = parse(current)
        package = current.relative_to(root).parent.parts
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level > len(package):
                raise InvalidArgument(
                    f"{current}:{node.lineno}: `{_written(node)}` is a relative import beyond the package {top}. "
                    "Import by the full name instead."
                )
            waiting += [file for name in _modules(node, package) if name[:1] == (top,) for file in _file(root, name)]


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


def named_files(path: Path, directories: Sequence[Path]) -> Iterator[tuple[int, str]]:
    """The line and text of each string in a Python file that is the relative path of a file below a directory. A file
    that this Python cannot parse has none: no program needs all that lies beside it."""
    try:
        tree = parse(path)
    except InvalidArgument:
        return
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        name = node.value
        is_path = len(name) <= _LONGEST_NAME and ("/" in name or "." in name) and name.isprintable()
        if is_path and not name.startswith("/") and any(_is_file(base / name) for base in directories):
            yield node.lineno, name


def _is_file(path: Path) -> bool:
    """Whether a file is there; False too for a text that is no path, and where nobody may look."""
    try:
        return path.is_file()
    except OSError:
        return False


def has_main_guard(path: Path) -> bool:
    """Whether a file has `if __name__ == "__main__":`. Raises InvalidArgument for a syntax error."""
    return any(
        isinstance(node, ast.If) and "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        for node in parse(path).body
    )


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
    if not package.is_dir() or not any(package.glob("*.py")):
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


def _read_notebook(path: Path, tree: ast.Module, content: _Found) -> None:
    """Collect what a notebook that was exported as a script calls; `script_package` has what they do in a job."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if not (isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "get_ipython"):
            continue
        content.is_notebook = True
        words = [str(argument.value) if isinstance(argument, ast.Constant) else "" for argument in node.args]
        location, method = f"{path}:{node.lineno}", node.func.attr
        name = words[0] if words else ""
        command = f"{name} {words[1] if len(words) > 1 else ''}" if "magic" in method else name
        if installed := _PIP.search(command):
            content.needs += _installed(installed[1], location)
        elif not _runs_in_a_job(method, name):
            raise InvalidArgument(
                f"{location}: `{name}` is a command of notebooks, which cannot run in a job. Remove the line."
            )


def _runs_in_a_job(method: str, name: str) -> bool:
    if method == "run_line_magic":
        return name in _DISPLAY | _CODE_MAGICS
    if method == "run_cell_magic":
        return name in _CODE_MAGICS | _SHELL_MAGICS
    return method in ("system", "getoutput")


def _installed(text: str, location: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return [requirements.check(word, location) for word in words if word not in _QUIET]
