"""Patterns of `=~`: a part of RE2's syntax whose time is linear in the text. Pure.

`^step [0-9].*(loss|nan)$`. A pattern is written out as alternatives, each a row of parts of fixed length with anything
between them, and each part is looked for once. No regular expression is made of all that a user writes: matching one
may take exponential time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

LONGEST = 200
"""Characters of a pattern."""

MOST_ALTERNATIVES = 64
"""Alternatives of a pattern that is written out: each is looked for by itself."""

_ALLOWED = (
    "a pattern has text, `.`, classes such as [0-9] and \\d, `.*` and `.+`, `?` after one character, groups with `|`, "
    "`^` at its start and `$` at its end"
)
_TOKEN = re.compile(
    r"""(?P<gap>\.[*+])|(?P<set>\[\^?\]?(?:[^\]\\\[]|\\.)*\])|(?P<class>\\[dwsDWS])|(?P<border>\\[bB])
    |\\(?P<escaped>[^A-Za-z0-9])|(?P<group>\((?:\?:)?)|(?P<special>[)|^$*+?{\\\[])|(?P<plain>.)""",
    re.X | re.S,
)
_GAP, _START, _END = ".*", "^", "$"

_Row = tuple[str, ...]
"""Elements: `.*`, `^`, `$`, and regular expressions of one character each, or of the border of a word."""


class PatternError(ValueError):
    """The message says what is wrong, and what is allowed."""


@dataclass(frozen=True, slots=True)
class _Alternative:
    """Parts with anything between them. `from_start`, `to_end`: the first begins the text, the last ends it."""

    parts: tuple[re.Pattern[str], ...]
    lengths: tuple[int, ...]
    from_start: bool
    to_end: bool

    def is_in(self, text: str) -> bool:
        at, last = 0, len(self.parts) - 1
        for number, part in enumerate(self.parts):
            if self.to_end and number == last:
                begin = len(text) - self.lengths[number]
                is_whole = self.from_start and not number
                return (begin == 0 if is_whole else begin >= at) and part.match(text, begin) is not None
            match = part.match(text) if self.from_start and not number else part.search(text, at)
            if match is None:
                return False
            at = match.end()
        return True


@dataclass(frozen=True, slots=True)
class Pattern:
    alternatives: tuple[_Alternative, ...]

    def is_in(self, text: str) -> bool:
        """Whether a part of the text matches."""
        return any(one.is_in(text) for one in self.alternatives)


@lru_cache(maxsize=64)
def pattern(text: str) -> Pattern:
    """Raises PatternError."""
    if len(text) > LONGEST:
        raise PatternError(f"a pattern may have {LONGEST} characters; this has {len(text)}.")
    flags = re.IGNORECASE if text.startswith("(?i)") else re.NOFLAG
    tokens = [
        (match.lastgroup or "", match[match.lastgroup or ""])
        for match in _TOKEN.finditer(text[4 * bool(flags) :])
    ]
    tokens.reverse()
    rows = _rows(tokens)
    if tokens:
        raise _wrong(tokens[-1][1])
    return Pattern(tuple(_alternative(row, flags) for row in rows))


def _rows(tokens: list[tuple[str, str]]) -> list[_Row]:
    """The alternatives up to a closing parenthesis or the end."""
    rows, row = list[_Row](), list[_Row]([()])
    while tokens and tokens[-1] != ("special", ")"):
        kind, text = tokens.pop()
        if (kind, text) == ("special", "|"):
            rows, row = [*rows, *row], [()]
            continue
        element = _element(kind, text, tokens)
        row = [one + other for one, other in product(row, element)]
        if len(rows) + len(row) > MOST_ALTERNATIVES:
            raise PatternError(f"this pattern has more than {MOST_ALTERNATIVES} alternatives.")
    return [*rows, *row]


def _element(kind: str, text: str, tokens: list[tuple[str, str]]) -> list[_Row]:
    """The alternatives of one element."""
    match kind:
        case "gap":
            return [(_GAP,)] if text == ".*" else [(".", _GAP)]
        case "group":
            rows = _rows(tokens)
            if not tokens:
                raise PatternError("a closing parenthesis is missing.")
            tokens.pop()
        case "special" if text in (_START, _END):
            return [(text,)]
        case "special":
            raise _wrong(text)
        case _:
            rows = [(_one(kind, text),)]
    if tokens and tokens[-1] == ("special", "?"):
        tokens.pop()
        rows = [(), *rows]
    elif tokens and tokens[-1][1] in ("+", "*") and tokens[-1][0] == "special" and kind != "group":
        rows = [(f"{rows[0][0]}{tokens.pop()[1]}",)]
    return rows


def _one(kind: str, text: str) -> str:
    if kind != "set":
        return text if kind in ("class", "border") or (text == "." and kind == "plain") else re.escape(text)
    character_class = text
    try:
        re.compile(character_class)
    except re.error:
        raise _wrong(text) from None
    return character_class


def _alternative(row: _Row, flags: re.RegexFlag) -> _Alternative:
    from_start, to_end = row[:1] == (_START,), row[-1:] == (_END,) and len(row) > 0
    inner = list(row[from_start : len(row) - to_end])
    # A repeated character at an open end of the pattern is found where one of it is.
    if inner and not from_start:
        inner[:1] = _once(inner[0])
    if inner and not to_end:
        inner[-1:] = _once(inner[-1])
    parts = list(_parts(inner))
    compiled = tuple(re.compile(characters, flags) for characters in map("".join, parts))
    lengths = tuple(sum(one not in (r"\b", r"\B") for one in part) for part in parts)
    return _Alternative(compiled, lengths, from_start, to_end)


def _once(element: str) -> list[str]:
    if len(element) < 2 or element == _GAP or element[-1] not in "+*" or element[:-1] == "\\":
        return [element]
    return [element[:-1]] if element[-1] == "+" else []


def _parts(row: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for element in row:
        if element in (_START, _END) or (_once(element) != [element]):
            raise _wrong(element[-1])
        if element == _GAP:
            yield part
            part = []
        else:
            part.append(element)
    yield part


def _wrong(text: str) -> PatternError:
    escaped = f"\\{text[:1]}"
    return PatternError(f"{text!r} cannot be here: {_ALLOWED}. The character itself is written as {escaped}.")
