"""Patterns of `=~`: RE2's regular expressions without its rarer parts, in time linear in the text. Pure.

`^step [0-9]+.*(loss|nan)$`. A pattern becomes an automaton whose states are sets of positions in it, made as a text
needs them: each character of a text is looked at once. No regular expression is made of all that a user writes:
matching one may take exponential time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import NamedTuple

LONGEST = 200
"""Characters of a pattern."""

LARGEST = 300
"""Steps of a pattern whose repetitions are written out."""

_ALLOWED = (
    "a pattern has text, `.`, classes such as [0-9] and \\d, `*`, `+`, `?` and {2,3} after what repeats, groups with "
    "`|`, `^`, `$`, \\b and \\B, and (?i) at its start"
)
_TOKEN = re.compile(
    r"""(?P<set>\[\^?\]?(?:[^\]\\\[]|\\.)*\])|(?P<class>\\[dwsDWStnrfv])|(?P<border>\\[bBAz]|[\^$])
    |\\(?P<escaped>[^A-Za-z0-9])|(?P<group>\((?:\?:|\?P<\w+>)?)|(?P<repeat>(?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})\??)
    |(?P<special>[)|\\\[])|(?P<plain>.)""",
    re.X | re.S,
)
_KEPT = 4096
"""Transitions of a pattern that are kept."""

_Token = tuple[str, str]


class PatternError(ValueError):
    """The message says what is wrong, and what is allowed."""


@dataclass(frozen=True, slots=True)
class _Character:
    character_class: str


@dataclass(frozen=True, slots=True)
class _Border:
    text: str


@dataclass(frozen=True, slots=True)
class _Row:
    parts: tuple["_Node", ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    rows: tuple["_Node", ...]


@dataclass(frozen=True, slots=True)
class _Repeated:
    """`most`: None for any number."""

    part: "_Node"
    least: int
    most: int | None


_Node = _Character | _Border | _Row | _Choice | _Repeated


@lru_cache(maxsize=64)
def pattern(text: str) -> "Pattern":
    """Raises PatternError."""
    if len(text) > LONGEST:
        raise PatternError(f"a pattern may have {LONGEST} characters; this has {len(text)}.")
    flags = re.IGNORECASE if text.startswith("(?i)") else re.NOFLAG
    tokens = [
        (match.lastgroup or "", match[match.lastgroup or ""])
        for match in _TOKEN.finditer(text[4 * bool(flags) :])
    ]
    tokens.reverse()
    node = _choice(tokens)
    if tokens:
        raise _wrong(tokens[-1][1])
    return Pattern(_Steps(node), flags)


def _choice(tokens: list[_Token]) -> _Node:
    """The alternatives up to a closing parenthesis or the end."""
    rows = [_row(tokens)]
    while tokens and tokens[-1] == ("special", "|"):
        tokens.pop()
        rows.append(_row(tokens))
    return rows[0] if len(rows) == 1 else _Choice(tuple(rows))


def _row(tokens: list[_Token]) -> _Node:
    parts: list[_Node] = []
    while tokens and tokens[-1] not in (("special", "|"), ("special", ")")):
        part = _part(*tokens.pop(), tokens)
        if tokens and tokens[-1][0] == "repeat":
            part = _repeated(part, tokens.pop()[1])
        parts.append(part)
    return parts[0] if len(parts) == 1 else _Row(tuple(parts))


def _part(kind: str, text: str, tokens: list[_Token]) -> _Node:
    match kind:
        case "group":
            inside = _choice(tokens)
            if not tokens:
                raise PatternError("a closing parenthesis is missing.")
            tokens.pop()
            return inside
        case "border":
            return _Border(text)
        case "special" | "repeat":
            raise _wrong(text)
        case "set":
            character_class = text
            try:
                re.compile(character_class)
            except re.error:
                raise _wrong(text) from None
            return _Character(text)
        case "plain" if text == ".":
            return _Character(text)
        case _:
            return _Character(text if kind == "class" else re.escape(text))


def _repeated(part: _Node, text: str) -> _Node:
    if text[0] != "{":
        return _Repeated(part, int(text[0] == "+"), 1 if text[0] == "?" else None)
    least, comma, most = text.rstrip("?").strip("{}").partition(",")
    if most and int(most) < int(least):
        raise _wrong(text)
    return _Repeated(part, int(least), int(most) if most else None if comma else int(least))


def _wrong(text: str) -> PatternError:
    escaped = f"\\{text[:1]}"
    return PatternError(f"{text!r} cannot be here: {_ALLOWED}. The character itself is written as {escaped}.")


class _Place(NamedTuple):
    """A place between two characters of a text, as far as borders ask."""

    is_start: bool
    is_end: bool
    is_border: bool

    def has(self, border: str) -> bool:
        match border:
            case "^":
                return self.is_start
            case "$" | "\\z":
                return self.is_end
            case _:
                return self.is_border == (border == "\\b")


_Following = dict[int, int]


class _Steps:
    """A pattern as a graph. A node has characters that lead to another one, and ways without a character, some only at
    a border."""

    def __init__(self, node: _Node) -> None:
        self._numbers, self._visits = count(1), 0
        self.free: dict[int, list[tuple[str, int]]] = {}
        self.characters: dict[int, tuple[str, int]] = {}
        self.end = self._add(node, 0)

    def _add(self, node: _Node, start: int) -> int:
        """The number of the node at which this part ends."""
        self._visits += 1
        if self._visits > LARGEST:
            raise PatternError(
                f"this pattern is too large: with its repetitions it has more than {LARGEST} steps."
            )
        match node:
            case _Character(character_class):
                end = next(self._numbers)
                self.characters[start] = (character_class, end)
            case _Border(text):
                end = self._way(start, text)
            case _Row(parts):
                end = start
                for part in parts:
                    end = self._add(part, end)
            case _Choice(rows):
                ends = [self._add(row, self._way(start)) for row in rows]
                end = next(self._numbers)
                for one in ends:
                    self._way(one, to=end)
            case _Repeated(part, least, most):
                end = self._repeat(part, least, most, start)
        return end

    def _repeat(self, part: _Node, least: int, most: int | None, start: int) -> int:
        for _ in range(least):
            start = self._add(part, start)
        if most is None:
            again = self._way(start)
            self._way(self._add(part, self._way(again)), to=again)
            return self._way(again)
        end = next(self._numbers)
        for _ in range(most - least):
            self._way(start, to=end)
            start = self._add(part, self._way(start))
        return self._way(start, to=end)

    def _way(self, start: int, border: str = "", to: int | None = None) -> int:
        to = next(self._numbers) if to is None else to
        self.free.setdefault(start, []).append((border, to))
        return to

    def reached(self, start: int, place: _Place) -> Iterator[int]:
        """The nodes to which ways without a character lead."""
        seen, waiting = {start}, [start]
        while waiting:
            number = waiting.pop()
            yield number
            for border, to in self.free.get(number, ()):
                if to not in seen and (not border or place.has(border)):
                    seen.add(to)
                    waiting.append(to)


class _State(dict[str, "_State"]):
    """A set of positions behind a character, as bits, with the states to which characters lead; "" is the end."""

    def __init__(self, owner: "Pattern", positions: int, before: str) -> None:
        self.owner, self.positions, self.before = owner, positions, before

    def __missing__(self, character: str) -> "_State":
        state = self.owner.state_after(self.positions, self.before, character)
        self[character] = state
        return state


class Pattern:
    def __init__(self, steps: _Steps, flags: re.RegexFlag) -> None:
        self._steps = steps
        self._from = (0, *(end for _, end in steps.characters.values()))
        """The node behind each position; the first is the start of the pattern, which may be anywhere in a text."""
        self._bits = {number: 1 << bit for bit, number in enumerate(steps.characters, 1)}
        self._found = 1 << len(self._from)
        classes = {character_class for character_class, _ in steps.characters.values()}
        compiled = {character_class: re.compile(character_class, flags) for character_class in classes}
        self._classes = tuple(
            (compiled[character_class], self._bits[number])
            for number, (character_class, _) in steps.characters.items()
        )
        self._match = _State(self, 0, "")
        # What is kept is bounded, since each can be found again.
        self._states: dict[tuple[int, str], _State] = {}
        self._masks: dict[str, int] = {}
        self._following: dict[_Place, _Following] = {}
        self._transitions = 0

    def is_in(self, text: str) -> bool:
        """Whether a part of the text matches."""
        match, state = self._match, self._state(1, "")
        for character in text:
            state = state[character]
            if state is match:
                return True
        return state[""] is match

    def state_after(self, positions: int, before: str, character: str) -> _State:
        """The state to which a character leads; `before`: the kind of the character before it, "" at the start."""
        self._transitions += 1
        if self._transitions % _KEPT == 0:
            self._states, self._masks = {}, {}
        if self._transitions % (16 * _KEPT) == 0:
            self._following = {}
        kind = "word" if character.isalnum() or character == "_" else "other"
        place = _Place(not before, not character, (before == "word") != (kind == "word"))
        reached = self._reached(positions, place)
        if reached & self._found:
            return self._match
        return self._state(reached & self._mask(character) | 1, kind)

    def _state(self, positions: int, before: str) -> _State:
        states = self._states
        if (state := states.get((positions, before))) is None:
            state = states[positions, before] = _State(self, positions, before)
        return state

    def _reached(self, positions: int, place: _Place) -> int:
        """The positions whose character may come next: eight at a time, each group of which is looked up."""
        reached, following = 0, self._following.setdefault(place, {})
        for number, byte in enumerate(positions.to_bytes(len(self._from) // 8 + 1, "little")):
            if byte:
                key = number << 8 | byte
                if (found := following.get(key)) is None:
                    found = following[key] = self._reached_of(8 * number, byte, place)
                reached |= found
        return reached

    def _reached_of(self, first: int, byte: int, place: _Place) -> int:
        reached = 0
        for bit in range(8):
            if byte >> bit & 1:
                for node in self._steps.reached(self._from[first + bit], place):
                    reached |= self._found if node == self._steps.end else self._bits.get(node, 0)
        return reached

    def _mask(self, character: str) -> int:
        """The positions that a character fits."""
        masks = self._masks
        if character not in masks:
            fitting = (bit for one, bit in self._classes if one.fullmatch(character))
            masks[character] = sum(fitting)
        return masks[character]
