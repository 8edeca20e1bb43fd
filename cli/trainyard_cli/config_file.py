"""The job's config file: YAML or JSON, every value with the place where it stands.

Whatever is wrong with a value is said as a compiler says it: `config.yaml:7: workerCount: must be ...`, with
the line and a caret.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic.alias_generators import to_camel, to_snake

from trainyard_protocol.errors import InvalidArgument, Violation

MAX_BYTES = 4 * 2**20
MAX_NODES = 100_000

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What ends a line for YAML (`str.splitlines` knows more)."""

_TAG = "tag:yaml.org,2002:"
_STRING = f"{_TAG}str"
_MERGE = f"{_TAG}merge"
_PLAIN = frozenset(f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the file; both count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Place:
    """Where one value stands, and where its key does; the places of what it holds."""

    value: Mark
    key: Mark | None = None
    scalar: bool = True
    children: dict[str | int, "Place"] = field(default_factory=dict)

    def child(self, step: str | int) -> "Place | None":
        """The child of that name, however the file spells it (camelCase or snake_case)."""
        if step in self.children or isinstance(step, int):
            return self.children.get(step)
        return next((p for k, p in self.children.items() if isinstance(k, str) and to_snake(k) == step), None)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    path: Path
    data: dict[str, Any]
    lines: Sequence[str]
    root: Place

    def say(self, mark: Mark, text: str) -> str:
        """`path:line: text`, the line itself, and a caret under the place."""
        return _located(self.path, self.lines, mark, text)


def load(path: Path) -> ConfigFile:
    """Read a config file. Raises InvalidArgument, saying where, for whatever is not one mapping of keys."""
    text = _read(path)
    lines = _BREAK.split(text)
    if not text.strip():
        raise InvalidArgument(f"{path}: is empty; a config has at least a trainingInput.")
    reader = _JsonReader if path.suffix == ".json" else _YamlReader
    data, root = reader(path, text, lines).read()
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        raise InvalidArgument(
            _located(path, lines, root.value, f"must hold a mapping with trainingInput; this is {kind}.")
        )
    return ConfigFile(path, data, lines, root)


def explain(violations: Sequence[Violation], config: ConfigFile | None, origins: Mapping[str, str]) -> str:
    """Every violation in the user's own terms: the flag that said it, or the line of the file.

    `origins` maps a proto path to the flag that gave its value.
    """
    ordered = sorted(violations, key=lambda v: _mark(config.root, v).line) if config else violations
    return "\n".join(_explained(violation, config, origins) for violation in ordered)


def steps_of(field_path: str) -> list[str | int]:
    """A violation's proto path from the root of the document: `args[2]` -> training_input, args, 2."""
    steps: list[str | int] = [int(index) if index else name for name, index in _STEP.findall(field_path)]
    if steps[:1] == ["job"]:
        return steps[1:]
    return ["training_input", *steps] if steps else []


def shown_name(field_path: str) -> str:
    """A proto path as a config file spells it: `master_config.image_uri` -> `masterConfig.imageUri`."""
    path = field_path.removeprefix("job.")
    return "trainingInput" if path == "training_input" else ".".join(map(to_camel, path.split(".")))


def _explained(violation: Violation, config: ConfigFile | None, origins: Mapping[str, str]) -> str:
    if violation.unknown is not None:
        owner = shown_name(violation.field) if violation.field not in ("", "job") else "a job"
        text = f'"{violation.unknown}" is not a field of {owner}. {violation.description}'.rstrip()
    elif violation.field:
        text = f"{shown_name(violation.field)}: {violation.description}"
    else:
        text = violation.description
    said_by = next((flag for path, flag in origins.items() if _covers(path, violation.field)), None)
    if said_by is not None:
        return f"{said_by}: {violation.description}"
    if config is None:
        return text
    return config.say(_mark(config.root, violation), text)


def _covers(origin: str, path: str) -> bool:
    return path == origin or path.startswith((f"{origin}[", f"{origin}."))


def _mark(root: Place, violation: Violation) -> Mark:
    """The place of the field, or of the nearest thing around it that is in the file."""
    here = root
    complete = True
    for step in steps_of(violation.field):
        inner = here.child(step)
        if inner is None:
            complete = False
            break
        here = inner
    if violation.unknown is not None and (unknown := here.child(violation.unknown)):
        return unknown.key or unknown.value
    if complete and here.scalar:
        return here.value
    return here.key or here.value


def _located(path: Path, lines: Sequence[str], mark: Mark, text: str) -> str:
    said = f"{path}:{mark.line}: {text}"
    if not 1 <= mark.line <= len(lines):
        return said
    source = lines[mark.line - 1]
    # Tabs stay tabs under the source line, so that the caret stands where the eye expects it.
    indent = "".join(c if c == "\t" else " " for c in source[: mark.column - 1])
    # What the terminal would obey is not shown as it is.
    shown = "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in source)
    return f"{said}\n    {shown}\n    {indent}^"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error
    if len(raw) > MAX_BYTES:
        raise InvalidArgument(f"{path}: is larger than {MAX_BYTES // 2**20} MiB; is it the config?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InvalidArgument(f"{path}:{line}: is not UTF-8 text.") from error


class _YamlReader:
    """One document -> its data and the places of its values."""

    def __init__(self, path: Path, text: str, lines: Sequence[str]) -> None:
        self._path = path
        self._text = text
        self._lines = lines
        self._nodes = 0

    def read(self) -> tuple[object, Place]:
        try:
            loader = self._loader = yaml.SafeLoader(self._text)
            try:
                node = loader.get_single_node()
                if node is None:
                    raise InvalidArgument(
                        f"{self._path}: holds nothing but comments; a config has at least a trainingInput."
                    )
                root = self._place(node, None, ())
                return loader.construct_document(node), root
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            raise self._wrong(error.problem_mark or error.context_mark, _yaml_problem(error)) from error
        except yaml.reader.ReaderError as error:
            before = _BREAK.split(self._text[: error.position])
            where = Mark(len(before), len(before[-1]) + 1)
            text = f"holds the character U+{_code(error.character):04X}, which YAML does not allow."
            raise InvalidArgument(_located(self._path, self._lines, where, text)) from error
        except RecursionError:
            raise InvalidArgument(f"{self._path}: is nested too deeply.") from None

    def _place(self, node: yaml.Node, key: yaml.Node | None, around: tuple[int, ...]) -> Place:
        self._nodes += 1
        if id(node) in around:
            raise self._wrong(node.start_mark, "refers to itself.")
        if self._nodes > MAX_NODES:
            raise self._wrong(node.start_mark, f"has more than {MAX_NODES} values.")
        self._check(node)
        place = Place(
            _mark_of(node.start_mark),
            _mark_of(key.start_mark) if key else None,
            isinstance(node, yaml.ScalarNode),
        )
        inside = (*around, id(node))
        if isinstance(node, yaml.SequenceNode):
            place.children = {i: self._place(item, None, inside) for i, item in enumerate(node.value)}
        elif isinstance(node, yaml.MappingNode):
            place.children = self._mapping(node, inside)
        return place

    def _mapping(self, node: yaml.MappingNode, around: tuple[int, ...]) -> dict[str | int, Place]:
        own: dict[str | int, Place] = {}
        merged: dict[str | int, Place] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._wrong(key.start_mark, "a key must be a plain name.")
            if key.tag == _MERGE:
                for source in self._sources(value):
                    merged = {**self._place(source, key, around).children, **merged}
                continue
            if key.tag != _STRING:
                raise self._wrong(key.start_mark, "a key must be text; put it in quotes.")
            self._check(key)
            if key.value in own:
                first = own[key.value].key or own[key.value].value
                raise self._wrong(
                    key.start_mark, f'"{key.value}" is given twice; the first is in line {first.line}.'
                )
            own[key.value] = self._place(value, key, around)
        return {**merged, **own}

    @staticmethod
    def _sources(value: yaml.Node) -> Iterator[yaml.Node]:
        yield from value.value if isinstance(value, yaml.SequenceNode) else (value,)

    def _check(self, node: yaml.Node) -> None:
        """Raises InvalidArgument for a value that JSON, in which the job is sent, does not have."""
        if node.tag not in _PLAIN:
            kind = node.tag.removeprefix(_TAG)
            what = "a date" if kind == "timestamp" else f"of the type {kind!r}"
            raise self._wrong(
                node.start_mark,
                f"is {what} to YAML; a job holds text, numbers, true, false, lists and mappings. "
                "If it is text, put the value in quotes.",
            )
        if not isinstance(node, yaml.ScalarNode):
            return
        if not self._is_text(node.value):
            raise self._wrong(node.start_mark, "holds half a character (a lone surrogate), which is no text.")
        if not self._is_finite(node):
            raise self._wrong(
                node.start_mark,
                f"{_short(node.value)} cannot be read as {_KINDS.get(node.tag, 'a value')}; "
                "if it is text, put the value in quotes.",
            )

    def _is_text(self, value: str) -> bool:
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True

    def _is_finite(self, node: yaml.ScalarNode) -> bool:
        """Whether a scalar is what its tag says, and no infinity."""
        try:
            value = self._loader.construct_object(node)
        except (ValueError, OverflowError, LookupError):
            return False
        return not isinstance(value, float) or math.isfinite(value)

    def _wrong(self, mark: "yaml.Mark | None", text: str) -> InvalidArgument:
        where = _mark_of(mark) if mark else Mark(1, 1)
        return InvalidArgument(_located(self._path, self._lines, where, text))


class _JsonReader(_YamlReader):
    """JSON: its own parser for the data, YAML's for the places (every JSON document is YAML, but for tabs)."""

    def read(self) -> tuple[object, Place]:
        try:
            data = json.loads(self._text)
        except json.JSONDecodeError as error:
            where = Mark(error.lineno, error.colno)
            raise InvalidArgument(
                _located(self._path, self._lines, where, f"is not JSON: {error.msg}.")
            ) from error
        except ValueError as error:  # a number of thousands of digits
            raise InvalidArgument(f"{self._path}: holds a number that is too long.") from error
        except RecursionError:
            raise InvalidArgument(f"{self._path}: is nested too deeply.") from None
        self._text = self._text.replace("\t", " ")  # a raw tab in JSON is always white space
        _, root = super().read()
        return data, root

    def _is_text(self, value: str) -> bool:
        """JSON writes one character as two escapes, which YAML leaves apart."""
        try:
            value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            return False
        return True

    def _is_finite(self, node: yaml.ScalarNode) -> bool:
        if node.style is not None or node.value in ("true", "false", "null"):
            return True
        return math.isfinite(_number(node.value))


_KINDS = {f"{_TAG}int": "a number", f"{_TAG}float": "a number", f"{_TAG}bool": "true or false"}


def _number(text: str) -> float:
    """A JSON number (or NaN and Infinity, which Python's parser lets pass)."""
    try:
        return float(text)
    except (ValueError, OverflowError):
        return math.nan


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _code(character: object) -> int:
    return character if isinstance(character, int) else ord(str(character))


def _mark_of(mark: yaml.Mark) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "is not YAML"
    if "'\\t'" in problem:
        return "has a tab where YAML wants spaces; indent with spaces."
    if "expected a single document" in (error.context or ""):
        return "starts a second document; a config is one document."
    return f"is not YAML: {problem}" + (f" ({error.context})." if error.context else ".")
