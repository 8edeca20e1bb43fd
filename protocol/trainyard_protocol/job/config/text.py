"""Parser of a job's config, YAML or JSON: its data and the position of every value.

The command line reads configs from files, the server from the dashboard's editor. `position_of` finds the text of a
violation, `violation_message` formats it. Pure. Why not ruamel.yaml: docs/design/0016-libraries.md.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml
from pydantic.alias_generators import to_camel, to_snake

from trainyard_protocol.errors import Violation
from trainyard_protocol.job.config.limits import MAX_BYTES, MAX_DEPTH, MAX_KEYS, MAX_VALUES, excess
from trainyard_protocol.job.training_input import TrainingInput

Format = Literal["yaml", "json"]

_MAX_DIGITS = 1000
"""Digits of a number. Python's parser needs quadratic time."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""Line breaks of YAML (`str.splitlines` has more)."""

_TAG = "tag:yaml.org,2002:"
_STRING = f"{_TAG}str"
_MERGE = f"{_TAG}merge"
_NUMBERS = (f"{_TAG}int", f"{_TAG}float")
_PLAIN = frozenset(f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))


_FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class TextPosition:
    """A position in the text. Lines and columns count from 1; columns are characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class TextSpan:
    """From a position to `end_column` (exclusive) of the same line. None: the end is unknown."""

    start: TextPosition
    end_column: int | None = None


@dataclass(slots=True)
class ValueLocation:
    """Positions of a value, its key and its children."""

    value: TextPosition
    key: TextPosition | None = None
    scalar: bool = True
    children: dict[str | int, "ValueLocation"] = field(default_factory=dict)
    value_end: int | None = None
    key_end: int | None = None

    def child(self, step: str | int) -> "ValueLocation | None":
        """The child of that name, in camelCase or snake_case."""
        if step in self.children or isinstance(step, int):
            return self.children.get(step)
        return next((p for k, p in self.children.items() if isinstance(k, str) and to_snake(k) == step), None)

    @property
    def name(self) -> TextSpan:
        """The span of the key, or of the value if it has no key."""
        return TextSpan(self.key, self.key_end) if self.key else TextSpan(self.value, self.value_end)


@dataclass(frozen=True, slots=True)
class ConfigText:
    data: dict[str, Any]
    lines: Sequence[str]
    root: ValueLocation


class NotReadable(Exception):
    """The text is not a config. `text` continues a message that begins with the position or the file."""

    def __init__(self, text: str, lines: Sequence[str], span: TextSpan | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.lines = lines
        self.span = span


def read(text: str, format_name: Format | None = None) -> ConfigText:
    """Parse a config. Raises NotReadable with a position if it is not a single mapping.

    Without a format, text that is valid JSON is JSON, and anything else YAML.
    """
    if len(text) > MAX_BYTES:
        raise NotReadable(f"is larger than {MAX_BYTES // 2**20} MiB. Is this a job config?", ())
    lines = _BREAK.split(text)
    if not text.strip():
        raise NotReadable("is empty; a config has at least a trainingInput.", lines)
    if problem := _excess_of_events(text):
        raise NotReadable(problem, lines)
    reader = _JsonReader if (format_name or _format_of(text)) == "json" else _YamlReader
    data, root = reader(text, lines).read()
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        message = f"must hold a mapping with trainingInput; this is {kind}."
        raise NotReadable(message, lines, TextSpan(root.value, root.value_end))
    if problem := excess(data):
        raise NotReadable(problem, lines)
    return ConfigText(data, lines, root)


def steps_of(field_path: str) -> list[str | int]:
    """The path of a violation from the root of the document: `args[2]` -> training_input, args, 2."""
    steps: list[str | int] = [int(index) if index else name for name, index in _STEP.findall(field_path)]
    if steps[:1] == ["job"]:
        return steps[1:]
    if steps[:1] == ["labels"]:
        return steps
    return ["training_input", *steps] if steps else []


def shown_name(field_path: str) -> str:
    """A proto path in the spelling of a config: `master_config.image_uri` -> `masterConfig.imageUri`."""
    path = field_path.removeprefix("job.")
    if path.startswith(("labels.", "env.")):
        return path  # labels and variables have names of the user's own
    return "trainingInput" if path == "training_input" else ".".join(map(to_camel, path.split(".")))


def violation_message(violation: Violation) -> str:
    """The message of a violation, with field names as in a config."""
    if violation.unknown is not None:
        if violation.field == "job" and to_snake(violation.unknown) in TrainingInput.model_fields:
            return f"`{violation.unknown}` stands at the top level: indent it below `trainingInput:`."
        owner = shown_name(violation.field) if violation.field not in ("", "job") else "a job"
        return f'"{violation.shown_name}" is not a field of {owner}. {violation.description}'.rstrip()
    if violation.field:
        return f"{shown_name(violation.field)}: {violation.description}"
    return violation.description


def position_of(root: ValueLocation, violation: Violation) -> TextSpan:
    """The span of the field, or of the nearest enclosing value that is in the text."""
    location = root
    complete = True
    for step in steps_of(violation.field):
        inner = location.child(step)
        if inner is None:
            complete = False
            break
        location = inner
    if violation.unknown is not None and (unknown := location.child(violation.unknown)):
        return unknown.name
    if complete and location.scalar:
        return TextSpan(location.value, location.value_end)
    return location.name


def _excess_of_events(text: str) -> str:
    """The limit that the text exceeds, as the end of a sentence; "" within all, and for what is no YAML.

    libyaml, where PyYAML has it, reads a text fifty times faster than the parser that knows positions does, and refuses
    some that the latter accepts.
    """
    for loader in (_FAST, yaml.SafeLoader):
        with suppress(yaml.YAMLError, ValueError, OverflowError):  # the reader says what is wrong, and where
            return _excess_of(yaml.parse(text, Loader=loader))
    return ""


def _excess_of(events: Iterable[yaml.Event]) -> str:
    around: list[tuple[bool, int]] = []  # whether it is a mapping, and its number of keys and values, or elements
    nodes = 0
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            around.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        nodes += 1
        if nodes > 2 * MAX_VALUES:  # a key is a node, too
            return f"has more than {MAX_VALUES} values."
        if around:
            is_mapping, size = around.pop()
            if is_mapping and size >= 2 * MAX_KEYS:
                return f"has a mapping with more than {MAX_KEYS} keys; {MAX_KEYS} are allowed."
            around.append((is_mapping, size + 1))
        if isinstance(event, yaml.CollectionStartEvent):
            around.append((isinstance(event, yaml.MappingStartEvent), 0))
            if len(around) > MAX_DEPTH + 1:
                return f"is nested too deeply; {MAX_DEPTH} levels are allowed."
    return ""


def _format_of(text: str) -> Format:
    """Invalid JSON is read as YAML, whose error messages apply to both."""
    if not text.lstrip().startswith("{"):
        return "yaml"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "yaml"
    return "json"


class _YamlReader:
    """Parses one YAML document into its data and the locations of its values."""

    def __init__(self, text: str, lines: Sequence[str]) -> None:
        self._text = text
        self._lines = lines
        self._nodes = 0

    def read(self) -> tuple[object, ValueLocation]:
        try:
            loader = self._loader = yaml.SafeLoader(self._text)
            try:
                node = self._node(loader)
                if node is None:
                    raise NotReadable("holds nothing but comments; a config has at least a trainingInput.", self._lines)
                root = self._locate(node, None, ())
                return loader.construct_document(node), root
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            span = TextSpan(_mark_of(mark)) if mark else TextSpan(TextPosition(1, 1))
            raise NotReadable(_yaml_problem(error), self._lines, span) from error
        except yaml.reader.ReaderError as error:
            before = _BREAK.split(self._text[: error.position])
            position = TextPosition(len(before), len(before[-1]) + 1)
            code = error.character if isinstance(error.character, int) else ord(str(error.character))
            text = f"holds the character U+{code:04X}, which YAML does not allow."
            raise NotReadable(text, self._lines, TextSpan(position, position.column + 1)) from error
        except RecursionError:
            raise NotReadable("is nested too deeply.", self._lines) from None

    def _node(self, loader: yaml.SafeLoader) -> yaml.Node | None:
        """The root of the document; None if it is empty."""
        try:
            node: yaml.Node | None = loader.get_single_node()
        except (ValueError, OverflowError):  # \\U00110000
            span = TextSpan(_mark_of(loader.get_mark()))
            raise NotReadable("has an escape that is no character.", self._lines, span) from None
        return node

    def _locate(self, node: yaml.Node, key: yaml.Node | None, parents: tuple[int, ...]) -> ValueLocation:
        self._nodes += 1
        if id(node) in parents:
            raise self._error(node, "refers to itself.")
        if self._nodes > MAX_VALUES:
            raise NotReadable(f"has more than {MAX_VALUES} values.", self._lines)
        self._check(node)
        location = ValueLocation(
            _mark_of(node.start_mark),
            _mark_of(key.start_mark) if key else None,
            isinstance(node, yaml.ScalarNode),
            value_end=self._end(node),
            key_end=self._end(key) if key else None,
        )
        parents = (*parents, id(node))
        if isinstance(node, yaml.SequenceNode):
            location.children = {i: self._locate(item, None, parents) for i, item in enumerate(node.value)}
        elif isinstance(node, yaml.MappingNode):
            location.children = self._mapping(node, parents)
        return location

    def _mapping(self, node: yaml.MappingNode, parents: tuple[int, ...]) -> dict[str | int, ValueLocation]:
        own: dict[str | int, ValueLocation] = {}
        merged: dict[str | int, ValueLocation] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key must be a plain name.")
            if key.tag == _MERGE:
                for source in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                    for name, location in self._locate(source, key, parents).children.items():
                        merged.setdefault(name, location)
                continue
            if key.tag != _STRING:
                raise self._error(key, "a key must be text; put it in quotes.")
            self._check(key)
            if key.value in own:
                first = own[key.value].key or own[key.value].value
                raise self._error(key, f'"{key.value}" is given twice; the first is in line {first.line}.')
            own[key.value] = self._locate(value, key, parents)
        return {**merged, **own}

    def _check(self, node: yaml.Node) -> None:
        """Raises NotReadable for a value that JSON, the wire format, does not have."""
        if node.tag not in _PLAIN:
            kind = node.tag.removeprefix(_TAG)
            what = "a date" if kind == "timestamp" else f"of the type {kind!r}"
            raise self._error(
                node,
                f"is {what} to YAML; a job holds text, numbers, true, false, lists and mappings. "
                "If it is text, put the value in quotes.",
            )
        if not isinstance(node, yaml.ScalarNode):
            return
        if not self._is_text(node.value):
            raise self._error(node, "holds half a character (a lone surrogate), which is not text.")
        too_long = node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS
        if too_long or not self._is_finite(node):
            raise self._error(
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
        """Whether a scalar can be parsed as the type of its tag, and is finite."""
        try:
            value = self._loader.construct_object(node)
        except (ValueError, OverflowError, LookupError):
            return False
        return not isinstance(value, float) or math.isfinite(value)

    def _error(self, node: yaml.Node, text: str) -> NotReadable:
        return NotReadable(text, self._lines, TextSpan(_mark_of(node.start_mark), self._end(node)))

    def _end(self, node: yaml.Node) -> int:
        """The column after the last character of the node in its first line."""
        start, end = node.start_mark, node.end_mark
        if end.line == start.line:
            return int(end.column) + 1
        line = self._lines[start.line] if start.line < len(self._lines) else ""
        return max(len(line), int(start.column)) + 1


class _JsonReader(_YamlReader):
    """Parses JSON by its own parser, and locates its values by YAML's: JSON is YAML, except for tabs."""

    def read(self) -> tuple[object, ValueLocation]:
        try:
            data = json.loads(self._text)
        except json.JSONDecodeError as error:
            position = TextPosition(error.lineno, error.colno)
            raise NotReadable(f"is not JSON: {error.msg}.", self._lines, TextSpan(position)) from error
        except ValueError as error:  # a number of thousands of digits
            raise NotReadable("holds a number that is too long.", self._lines) from error
        except RecursionError:
            raise NotReadable("is nested too deeply.", self._lines) from None
        if problem := excess(data):  # libyaml refuses some JSON, and then counts nothing
            raise NotReadable(problem, self._lines)
        self._text = self._text.replace("\t", " ")  # a raw tab in JSON is white space
        _, root = super().read()
        return data, root

    def _is_text(self, value: str) -> bool:
        """YAML does not join the two escapes of a surrogate pair in JSON."""
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
    """A JSON number, or NaN and Infinity, which Python's parser accepts."""
    try:
        return float(text)
    except (ValueError, OverflowError):
        return math.nan


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _mark_of(mark: yaml.Mark) -> TextPosition:
    return TextPosition(mark.line + 1, mark.column + 1)


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "is not YAML"
    if "'\\t'" in problem:
        return "has a tab where YAML needs spaces; indent with spaces."
    if "expected a single document" in (error.context or ""):
        return "starts a second document; a config is one document."
    return f"is not YAML: {problem}" + (f" ({error.context})." if error.context else ".")
