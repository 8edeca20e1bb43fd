"""Partial responses: the system parameter `fields` of Google's APIs. Pure.

`jobs(jobId,trainingInput/scaleTier),nextPageToken`: names with `/` or `.` between the levels, and sub-selections in
parentheses; `*` is every field. Source: https://cloud.google.com/apis/docs/system-parameters
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.alias_generators import to_snake

from trainyard_protocol.errors import InvalidArgument, Violation, shown

Mask = dict[str, "Mask"]
"""The selected fields; one without an entry of its own is selected whole."""

_TOKEN = re.compile(r"\s*([A-Za-z0-9_$@-]+|\*|[(),/.])\s*")
_LONGEST = 2000
_DEEPEST = 20
_ALL = "*"


def parse(text: str) -> Mask:
    """The mask of a parameter's value. Raises InvalidArgument."""
    if len(text) > _LONGEST:
        raise _refusal(text, f"it may have {_LONGEST} characters")
    mask: Mask = {}
    parser = _Parser(text)
    parser.add_list(mask, 0)
    if parser.next:
        raise _refusal(text, f"{parser.next!r} does not belong there")
    return mask


def apply(mask: Mapping[str, Mask], value: Any) -> Any:
    """The selected part of an answer; of a list, that of each element."""
    if not mask:
        return value
    if isinstance(value, list):
        return [apply(mask, item) for item in value]
    if not isinstance(value, dict):
        return value
    selected = {}
    for name, inside in value.items():
        below = mask.get(name, mask.get(to_snake(name), mask.get(_ALL)))
        if below is not None:
            selected[name] = apply(below, inside)
    return selected


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self.next = ""
        self._advance()

    def add_list(self, mask: Mask, depth: int) -> None:
        self._add_path(mask, depth)
        while self.next == ",":
            self._advance()
            self._add_path(mask, depth)

    def _add_path(self, mask: Mask, depth: int) -> None:
        """A field that is selected whole stays so, whatever else names a part of it."""
        name = self._name(depth)
        part: Mask = {}
        if self.next in ("/", "."):
            self._advance()
            self._add_path(part, depth + 1)
        elif self.next == "(":
            self._advance()
            self.add_list(part, depth + 1)
            if self.next != ")":
                raise _refusal(self._text, "a closing parenthesis is missing")
            self._advance()
        mask[name] = _union(mask[name], part) if name in mask else part

    def _name(self, depth: int) -> str:
        name = self.next
        if depth > _DEEPEST:
            raise _refusal(self._text, f"it may have {_DEEPEST} levels")
        if not name or name in "(),/.":
            actual = f"{name!r}" if name else "its end"
            raise _refusal(self._text, f"the name of a field is expected in place of {actual}")
        self._advance()
        return name

    def _advance(self) -> None:
        self.next = next(self._tokens, "")

    def _scan(self) -> Iterator[str]:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise _refusal(self._text, f"{self._text[at]!r} is no part of a name")
            yield match[1]
            at = match.end()


def _union(mask: Mask, other: Mask) -> Mask:
    if not mask or not other:
        return {}
    both = {name: _union(mask[name], other[name]) for name in mask.keys() & other.keys()}
    return mask | other | both


def _refusal(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(Violation("fields", f"{shown(text)!r} is not a selection such as jobs(jobId,state): {why}."))
