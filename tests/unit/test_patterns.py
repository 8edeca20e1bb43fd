"""Regular expressions: no text of a user, a job or an agent becomes one, since it could take exponential time."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("cli", "docker", "protocol", "sdk", "server", "storage", "programs", "worker_agent")
MATCHERS = {"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}
GLOBS = {"fnmatch", "glob"}

OF_OUR_OWN = {
    "server/trainyard_server/domain/images.py": GLOBS,  # the operator's; Python's translation does not backtrack
    "server/trainyard_server/domain/access/route_access.py": {"expression"},  # the paths of the table
    "server/trainyard_server/storage/logs/index.py": {"pattern"},  # bytes of the index
    "protocol/trainyard_protocol/job/keys/engine_options.py": {"pattern"},  # constants of the module
    "protocol/trainyard_protocol/answers/origin.py": {"pattern"},  # constants of the module
    "worker_agent/trainyard_agent/runtimes/masking.py": {"classes"},  # of escaped bytes: linear
    "worker_agent/trainyard_agent/staging/image_errors.py": {"pattern"},  # the patterns of a constant table
}
"""Names of local variables that hold a pattern of the module's own, and of modules that make patterns of such."""


def _is_constant(pattern: ast.expr, names: set[str]) -> bool:
    """Whether a pattern consists of literals and constants of a module."""
    match pattern:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name.isupper() or name in names
        case ast.JoinedStr(values=parts):
            return all(_is_constant(part, names) for part in parts)
        case ast.FormattedValue(value=value):
            return all(_is_constant(part, names) for part in ast.walk(value) if isinstance(part, ast.Name))
        case ast.BinOp(left=left, right=right):
            return _is_constant(left, names) and _is_constant(right, names)
        case _:
            return False


def _made_of_input(path: Path, names: set[str]) -> Iterator[int]:
    text = path.read_text(encoding="utf-8")
    if not re.search(r"\b(?:re|fnmatch|glob)\b", text):
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[pattern, *_]):
                if name in MATCHERS and not _is_constant(pattern, names):
                    yield node.lineno
            case ast.Import(names=modules) if any(alias.name in GLOBS - names for alias in modules):
                yield node.lineno
            case ast.ImportFrom(module=module) if module in GLOBS - names:
                yield node.lineno


def test_no_regular_expression_is_made_of_input() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in _made_of_input(path, OF_OUR_OWN.get(str(path.relative_to(ROOT)), set()))
    ]
    assert not wrong, "\n".join(wrong)
