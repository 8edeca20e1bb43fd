"""Indentation of a config, rebuilt from the fields of a job.

Text that is copied from a web page loses the white space at the beginning of its lines. A key without a value opens a
scope; a key below belongs to the deepest open scope that knows it and does not have it yet. Keys, values and comments
stay as they were typed. Pure.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_origin

import yaml
from pydantic.alias_generators import to_snake

from trainyard_protocol.job.config import text as config_text
from trainyard_protocol.job.config.text import NotReadable
from trainyard_protocol.job.training_input import Job
from trainyard_protocol.message import Message, message_in, parts_of

MAX_LINES = 2000

_SPACE = " \t\xa0"  # a web page has non-breaking ones
_STEP = 2
_KEY = re.compile(rf"""(["']?)([A-Za-z_][\w-]*)\1[{_SPACE}]*:(?:[{_SPACE}]+(.*))?""")
_ITEM = re.compile(rf"-(?:[{_SPACE}]+(.*))?")
_EMPTY = re.compile(r"(#.*)?")


class _GiveUp(Exception):
    """The text is not a config whose lines can be placed."""


@dataclass(slots=True)
class _Scope:
    """An open mapping or list. A mapping of a message has `fields` by their snake_case names; one of labels has none.
    The elements of a list are values, or messages with `item_fields`."""

    column: int
    is_list: bool = False
    fields: Mapping[str, Any] | None = None
    item_fields: Mapping[str, Any] | None = None
    names: set[str] = field(default_factory=set)

    def accepts(self, name: str) -> bool:
        return not self.is_list and self.fields is not None and name in self.fields and name not in self.names

    @property
    def is_labels(self) -> bool:
        return not self.is_list and self.fields is None


@dataclass(frozen=True, slots=True)
class _Line:
    indent: int
    content: str

    @property
    def is_silent(self) -> bool:
        return _EMPTY.fullmatch(self.content) is not None


def rebuild(text: str) -> str | None:
    """The config with the indentation that its fields need. None: it has not lost any, or it cannot be rebuilt such
    that every key and value stays."""
    if text.count("\n") > MAX_LINES:
        return None
    lines = [_line(raw) for raw in text.removeprefix("\ufeff").splitlines()]
    if len(lines) > MAX_LINES or not _has_lost_indentation(lines):
        return None
    try:
        rebuilt = "".join(f"{line}\n" for line in _placed(lines))
        if list(_scalars(rebuilt)) != [scalar for line in lines for scalar in _scalars(line.content)]:
            return None
        after = config_text.read(rebuilt, "yaml").data
    except (_GiveUp, yaml.YAMLError, NotReadable, RecursionError):
        return None
    try:
        before = config_text.read(text, "yaml").data
    except NotReadable:
        return rebuilt
    return None if before == after else rebuilt


def _line(raw: str) -> _Line:
    content = raw.strip(_SPACE + "\r")
    return _Line(len(raw) - len(raw.lstrip(_SPACE)), content)


def _has_lost_indentation(lines: Sequence[_Line]) -> bool:
    """Whether a key without a value is followed by a key that is not deeper."""
    spoken = [line for line in lines if not line.is_silent]
    for line, following in itertools.pairwise(spoken):
        key = _KEY.fullmatch(line.content)
        if key and _is_empty(key[3]) and following.indent <= line.indent and _KEY.fullmatch(following.content):
            return True
    return False


def _placed(lines: Sequence[_Line]) -> Iterator[str]:
    """The lines, indented. A comment is placed as the line that follows it. Raises _GiveUp."""
    stack = [_Scope(0, fields=_fields(Job))]
    comments: list[str] = []
    column = 0
    for line in lines:
        if line.is_silent:
            comments.append(line.content)
            continue
        column = _place(stack, line.content)
        yield from (f"{' ' * column}{comment}".rstrip() for comment in comments)
        comments = []
        yield " " * column + _plain_spaces(line.content)
    yield from (f"{' ' * column}{comment}".rstrip() for comment in comments)


def _place(stack: list[_Scope], content: str) -> int:
    """The column of a line; the scopes that it closes and opens."""
    item = _ITEM.fullmatch(content)
    if item is None:
        return _place_key(stack, content)
    key = _KEY.fullmatch(item[1] or "")
    name = to_snake(key[2]) if key else ""
    for depth in range(len(stack) - 1, -1, -1):
        scope = stack[depth]
        if not scope.is_list or (scope.item_fields is not None) != bool(key):
            continue
        if key is None or scope.item_fields is None:
            del stack[depth + 1 :]
            return scope.column
        if name in scope.item_fields:
            del stack[depth + 1 :]
            stack.append(_Scope(scope.column + _STEP, fields=scope.item_fields))
            _place_key(stack, item[1])
            return scope.column
    raise _GiveUp


def _place_key(stack: list[_Scope], content: str) -> int:
    key = _KEY.fullmatch(content)
    if key is None or (key[3] or "").startswith(("|", ">")):
        raise _GiveUp
    name = to_snake(key[2])
    deepest_first = range(len(stack) - 1, -1, -1)
    matching = next((depth for depth in deepest_first if stack[depth].accepts(name)), None)
    if matching is None:  # a label may have any name that no field has
        matching = next((depth for depth in deepest_first if stack[depth].is_labels), None)
    if matching is None:
        raise _GiveUp
    del stack[matching + 1 :]
    scope = stack[matching]
    scope.names.add(name)
    if scope.fields is not None and _is_empty(key[3]):
        opened = _opened(scope.fields[name], scope.column + _STEP)
        if opened is not None:
            stack.append(opened)
    return scope.column


def _opened(annotation: Any, column: int) -> _Scope | None:
    """The scope that a field opens; None for a scalar."""
    message = message_in(annotation)
    if any(get_origin(kind) is tuple for kind in parts_of(annotation)):
        return _Scope(column, is_list=True, item_fields=_fields(message) if message else None)
    if message is not None:
        return _Scope(column, fields=_fields(message))
    return _Scope(column) if any(get_origin(kind) is dict for kind in parts_of(annotation)) else None


def _fields(message: type[Message]) -> Mapping[str, Any]:
    return {name: info.annotation for name, info in message.model_fields.items()}


def _is_empty(value: str | None) -> bool:
    return _EMPTY.fullmatch(value or "") is not None


def _plain_spaces(content: str) -> str:
    """The line with the spaces that YAML knows before its value."""
    match = re.match(rf"((?:-[{_SPACE}]+)?[^:]*:?)([{_SPACE}]+)", content)
    return (
        content if match is None or "\xa0" not in match[0] else match[0].replace("\xa0", " ") + content[match.end() :]
    )


def _scalars(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values in their order, without empty ones. Raises yaml.YAMLError."""
    loader = yaml.SafeLoader(_plain_spaces(text) if "\n" not in text else text)
    try:
        node = loader.get_single_node()
    finally:
        loader.dispose()
    yield from _scalars_of(node)


def _scalars_of(node: yaml.Node | None) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.ScalarNode):
        if node.value or node.style:
            yield node.tag, node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars_of(key)
            yield from _scalars_of(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _scalars_of(value)
