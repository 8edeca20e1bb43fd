"""Names and docstrings: a few words that say nothing to a newcomer may not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "benchmarks",
    "cli",
    "docker",
    "programs",
    "protocol",
    "scripts",
    "sdk",
    "server",
    "storage",
    "tests",
    "trainer_library",
    "trainer_template",
    "worker_agent",
)

REFUSED = {
    "conductor": "controller",
    "hear": "record_heartbeat",
    "heard": "heartbeat, last_contact",
    "hearing": "liveness",
    "leftover": "orphan",
    "leftovers": "orphans",
    "mend": "repair",
    "news": "event, change",
    "said": "message",
    "sought": "found, result",
    "spent": "used",
    "stray": "orphan",
    "strays": "orphans",
    "take": "add, ingest, consume, claim: what it does",
    "takes": "accepts, parameters",
    "tell": "report, notify",
    "told": "requested, reported, message",
    "trouble": "failure, error",
    "troubles": "failures, errors",
    "unsaid": "unreported",
}
"""Words that are no part of a name, and what to write instead."""

VAGUE = {"known", "one"}
"""Names of the product that say nothing: a variable is called what it is. Tests and benchmarks may use them."""

NOT_FIRST = {
    *("As", "Between", "By", "Everybody", "For", "How", "Nobody", "Of", "So", "Somebody", "What", "Where"),
    *("Who", "Whoever", "Whose", "Why", "With", "Without"),
}
"""Words that a docstring does not begin with: it opens with a noun phrase or an imperative."""

RELEASED = ROOT / "server" / "trainyard_server" / "migrations" / "versions"


def _files(folder: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / folder).rglob("*.py")) if RELEASED not in path.parents)


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that the module itself gives: functions, classes, parameters, variables, attributes, aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def _words(name: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_in_standard_terms_and_docstrings_open_with_a_noun_phrase_or_an_imperative(folder: str) -> None:
    refused = []
    for path in _files(folder):
        place, tree = path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))
        is_product = folder not in ("benchmarks", "tests") and "tests" not in place.parts
        for line, name in _names(tree):
            words = [] if name.startswith("test_") else sorted(_words(name) & REFUSED.keys())
            refused += [f"{place}:{line}: {name}: instead of {word!r} write {REFUSED[word]}" for word in words]
            if is_product and name in VAGUE:
                refused.append(f"{place}:{line}: {name}: say what it is")
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and text.split(maxsplit=1)[0].strip(",.:;") in NOT_FIRST:
                    refused.append(f"{place}:{getattr(node, 'lineno', 1)}: {text[:60]!r}")
    assert not refused, "\n".join(refused)


def test_class_names_mean_one_thing() -> None:
    """Public classes of the product; the template and the Python client, which users copy and import, have names of
    their own."""
    places: dict[str, list[str]] = {}
    for folder in ("protocol", "cli", "server", "worker_agent"):
        for path in _files(folder):
            for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
                places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
