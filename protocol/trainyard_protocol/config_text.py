"""The text of a job's config, YAML or JSON: its data, and the place of every value in it.

The command line reads it from a file, the server out of a browser's editor. Both say what is wrong with a value in
the same words, and where: `place_of` finds the line of a violation, `sentence` words it. Pure.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml
from pydantic.alias_generators import to_camel, to_snake

from trainyard_protocol.errors import Violation

Format = Literal["yaml", "json"]

MAX_NODES = 100_000
_MAX_DIGITS = 1000
"""Of a number. Python takes a time that grows with the square of them."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What ends a line for YAML (`str.splitlines` knows more)."""

_TAG = "tag:yaml.org,2002:"
_STRING = f"{_TAG}str"
_MERGE = f"{_TAG}merge"
_NUMBERS = (f"{_TAG}int", f"{_TAG}float")
_PLAIN = frozenset(f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the text; both count from 1, the columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Span:
    """From a place up to, and without, `end_column` of the same line. None: where it ends is not known."""

    start: Mark
    end_column: int | None = None


@dataclass(slots=True)
class Place:
    """Where one value stands, and where its key does; the places of what it holds."""

    value: Mark
    key: Mark | None = None
    scalar: bool = True
    children: dict[str | int, "Place"] = field(default_factory=dict)
    value_end: int | None = None
    key_end: int | None = None

    def child(self, step: str | int) -> "Place | None":
        """The child of that name, however the text spells it (camelCase or snake_case)."""
        if step in self.children or isinstance(step, int):
            return self.children.get(step)
        return next((p for k, p in self.children.items() if isinstance(k, str) and to_snake(k) == step), None)

    @property
    def name(self) -> Span:
        """The key; of what has none, the value."""
        return Span(self.key, self.key_end) if self.key else Span(self.value, self.value_end)


@dataclass(frozen=True, slots=True)
class ConfigText:
    data: dict[str, Any]
    lines: Sequence[str]
    root: Place


class NotReadable(Exception):
    """The text is no config. `text` goes on where the place, or else the name of the file, ends."""

    def __init__(self, text: str, lines: Sequence[str], span: Span | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.lines = lines
        self.span = span


def read(text: str, form: Format | None = None) -> ConfigText:
    """Raises NotReadable, saying where, for whatever is not one mapping of keys.

    Without a format: JSON where it is that, else YAML.
    """
    lines = _BREAK.split(text)
    if not text.strip():
        raise NotReadable("is empty; a config has at least a trainingInput.", lines)
    reader = _JsonReader if (form or _form_of(text)) == "json" else _YamlReader
    data, root = reader(text, lines).read()
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        said = f"must hold a mapping with trainingInput; this is {kind}."
        raise NotReadable(said, lines, Span(root.value, root.value_end))
    return ConfigText(data, lines, root)


def steps_of(field_path: str) -> list[str | int]:
    """A violation's proto path from the root of the document: `args[2]` -> training_input, args, 2."""
    steps: list[str | int] = [int(index) if index else name for name, index in _STEP.findall(field_path)]
    if steps[:1] == ["job"]:
        return steps[1:]
    if steps[:1] == ["labels"]:
        return steps
    return ["training_input", *steps] if steps else []


def shown_name(field_path: str) -> str:
    """A proto path as a config spells it: `master_config.image_uri` -> `masterConfig.imageUri`."""
    path = field_path.removeprefix("job.")
    if path.startswith("labels."):
        return path  # a label's name is the user's own
    return "trainingInput" if path == "training_input" else ".".join(map(to_camel, path.split(".")))


def sentence(violation: Violation) -> str:
    """What is wrong, in the config's own names."""
    if violation.unknown is not None:
        owner = shown_name(violation.field) if violation.field not in ("", "job") else "a job"
        return f'"{violation.unknown}" is not a field of {owner}. {violation.description}'.rstrip()
    if violation.field:
        return f"{shown_name(violation.field)}: {violation.description}"
    return violation.description


def place_of(root: Place, violation: Violation) -> Span:
    """The place of the field, or of the nearest thing around it that is in the text."""
    here = root
    complete = True
    for step in steps_of(violation.field):
        inner = here.child(step)
        if inner is None:
            complete = False
            break
        here = inner
    if violation.unknown is not None and (unknown := here.child(violation.unknown)):
        return unknown.name
    if complete and here.scalar:
        return Span(here.value, here.value_end)
    return here.name


def _form_of(text: str) -> Format:
    """Every JSON document is YAML, but for tabs; what is broken is explained as YAML."""
    if not text.lstrip().startswith("{"):
        return "yaml"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "yaml"
    return "json"


class _YamlReader:
    """One document -> its data and the places of its values."""

    def __init__(self, text: str, lines: Sequence[str]) -> None:
        self._text = text
        self._lines = lines
        self._nodes = 0

    def read(self) -> tuple[object, Place]:
        try:
            loader = self._loader = yaml.SafeLoader(self._text)
            try:
                node = loader.get_single_node()
                if node is None:
                    raise NotReadable(
                        "holds nothing but comments; a config has at least a trainingInput.", self._lines
                    )
                root = self._place(node, None, ())
                return loader.construct_document(node), root
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            span = Span(_mark_of(mark)) if mark else Span(Mark(1, 1))
            raise NotReadable(_yaml_problem(error), self._lines, span) from error
        except yaml.reader.ReaderError as error:
            before = _BREAK.split(self._text[: error.position])
            where = Mark(len(before), len(before[-1]) + 1)
            text = f"holds the character U+{_code(error.character):04X}, which YAML does not allow."
            raise NotReadable(text, self._lines, Span(where, where.column + 1)) from error
        except RecursionError:
            raise NotReadable("is nested too deeply.", self._lines) from None

    def _place(self, node: yaml.Node, key: yaml.Node | None, around: tuple[int, ...]) -> Place:
        self._nodes += 1
        if id(node) in around:
            raise self._wrong(node, "refers to itself.")
        if self._nodes > MAX_NODES:
            raise self._wrong(node, f"has more than {MAX_NODES} values.")
        self._check(node)
        place = Place(
            _mark_of(node.start_mark),
            _mark_of(key.start_mark) if key else None,
            isinstance(node, yaml.ScalarNode),
            value_end=self._end(node),
            key_end=self._end(key) if key else None,
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
                raise self._wrong(key, "a key must be a plain name.")
            if key.tag == _MERGE:
                for source in self._sources(value):
                    merged = {**self._place(source, key, around).children, **merged}
                continue
            if key.tag != _STRING:
                raise self._wrong(key, "a key must be text; put it in quotes.")
            self._check(key)
            if key.value in own:
                first = own[key.value].key or own[key.value].value
                raise self._wrong(key, f'"{key.value}" is given twice; the first is in line {first.line}.')
            own[key.value] = self._place(value, key, around)
        return {**merged, **own}

    @staticmethod
    def _sources(value: yaml.Node) -> Iterator[yaml.Node]:
        yield from value.value if isinstance(value, yaml.SequenceNode) else (value,)

    def _check(self, node: yaml.Node) -> None:
        """Raises NotReadable for a value that JSON, in which the job is sent, does not have."""
        if node.tag not in _PLAIN:
            kind = node.tag.removeprefix(_TAG)
            what = "a date" if kind == "timestamp" else f"of the type {kind!r}"
            raise self._wrong(
                node,
                f"is {what} to YAML; a job holds text, numbers, true, false, lists and mappings. "
                "If it is text, put the value in quotes.",
            )
        if not isinstance(node, yaml.ScalarNode):
            return
        if not self._is_text(node.value):
            raise self._wrong(node, "holds half a character (a lone surrogate), which is no text.")
        too_long = node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS
        if too_long or not self._is_finite(node):
            raise self._wrong(
                node,
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

    def _wrong(self, node: yaml.Node, text: str) -> NotReadable:
        return NotReadable(text, self._lines, Span(_mark_of(node.start_mark), self._end(node)))

    def _end(self, node: yaml.Node) -> int:
        """The column after the node's last character in its first line."""
        start, end = node.start_mark, node.end_mark
        if end.line == start.line:
            return int(end.column) + 1
        line = self._lines[start.line] if start.line < len(self._lines) else ""
        return max(len(line), int(start.column)) + 1


class _JsonReader(_YamlReader):
    """JSON: its own parser for the data, YAML's for the places (every JSON document is YAML, but for tabs)."""

    def read(self) -> tuple[object, Place]:
        try:
            data = json.loads(self._text)
        except json.JSONDecodeError as error:
            where = Mark(error.lineno, error.colno)
            raise NotReadable(f"is not JSON: {error.msg}.", self._lines, Span(where)) from error
        except ValueError as error:  # a number of thousands of digits
            raise NotReadable("holds a number that is too long.", self._lines) from error
        except RecursionError:
            raise NotReadable("is nested too deeply.", self._lines) from None
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
