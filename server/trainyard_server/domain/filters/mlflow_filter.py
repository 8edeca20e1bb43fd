"""Filters and orders of MLflow's searches: `metrics.loss < 0.5 AND params."batch size" = '32'`. Pure.

Comparisons are joined by AND alone, as MLflow has it. A name may stand in quotes or backquotes, and an attribute
without `attributes.`. Source: mlflow/utils/search_utils.py of MLflow 3.17.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from trainyard_protocol.errors import InvalidArgument, Violation, quoted

MAX_LENGTH = 32_000
"""Limit of the characters of a filter."""

MAX_TERMS = 100
"""Limit of comparisons of a filter, and of the fields of an order."""

MAX_VALUES = 1000
"""Limit of the values of one list."""

_MAX_PATTERN = 500

NUMERIC = ("=", "!=", "<", "<=", ">", ">=")
TEXTUAL = ("=", "!=", "LIKE", "ILIKE", "IN", "NOT IN")
NULLS = ("IS NULL", "IS NOT NULL")

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<op><=|>=|!=|<>|=|<|>)
    | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | '(?P<single>(?:[^']|'')*)'
    | (?P<open>\() | (?P<close>\)) | (?P<comma>,)
    | (?P<field>(?:`\w+`|\w+)\.(?:"[^"]*"|`[^`]*`|'[^']*'|[^\s"'`()=<>!,]+))
    | "(?P<double>[^"]*)" | `(?P<back>[^`]*)`
    | (?P<word>[^\s"'`()=<>!,]+)
    )""",
    re.X,
)


class FieldKind(StrEnum):
    METRIC = "metric"
    PARAM = "parameter"
    TAG = "tag"
    ATTRIBUTE = "attribute"
    DATASET = "dataset"


_KINDS = {
    **dict.fromkeys(("metric", "metrics"), FieldKind.METRIC),
    **dict.fromkeys(("parameter", "parameters", "param", "params"), FieldKind.PARAM),
    **dict.fromkeys(("tag", "tags"), FieldKind.TAG),
    **dict.fromkeys(("attribute", "attributes", "attr", "run"), FieldKind.ATTRIBUTE),
    **dict.fromkeys(("dataset", "datasets"), FieldKind.DATASET),
}
_DATASET_KEYS = ("name", "digest", "context")

Operand = float | str | tuple[str, ...] | None


class SearchField(NamedTuple):
    kind: FieldKind
    key: str


class SearchTerm(NamedTuple):
    """A comparison. `value` is a number, a text, the texts of IN, or None of IS NULL."""

    field: SearchField
    op: str
    value: Operand


class SearchOrder(NamedTuple):
    field: SearchField
    descending: bool


@dataclass(frozen=True, slots=True)
class SearchGrammar:
    """The fields of one search: its attributes by each of their names, those that are numbers, and the other kinds."""

    attributes: Mapping[str, str]
    numeric: frozenset[str]
    kinds: frozenset[FieldKind]

    def is_numeric(self, field: SearchField) -> bool:
        return field.kind is FieldKind.METRIC or (field.kind is FieldKind.ATTRIBUTE and field.key in self.numeric)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


RUNS = SearchGrammar(
    _same("run_id", "run_name", "status", "user_id", "start_time", "end_time", "artifact_uri")
    | dict.fromkeys(("created", "Created"), "start_time")
    | dict.fromkeys(("run name", "Run name", "Run Name"), "run_name"),
    frozenset({"start_time", "end_time"}),
    frozenset(FieldKind),
)
"""The fields of runs."""

EXPERIMENTS = SearchGrammar(
    _same("name", "experiment_id", "creation_time", "last_update_time"),
    frozenset({"creation_time", "last_update_time"}),
    frozenset({FieldKind.ATTRIBUTE, FieldKind.TAG}),
)
"""The fields of experiments."""

MODELS = SearchGrammar(
    _same("name", "model_id", "model_type", "status", "source_run_id", "creation_timestamp", "last_updated_timestamp")
    | {"creation_time": "creation_timestamp", "last_updated_time": "last_updated_timestamp"},
    frozenset({"creation_timestamp", "last_updated_timestamp"}),
    frozenset(FieldKind) - {FieldKind.DATASET},
)
"""The fields of logged models."""


class _Token(NamedTuple):
    kind: str
    text: str
    raw: str

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words


def parse_filter(text: str, grammar: SearchGrammar) -> list[SearchTerm]:
    """The comparisons, all of which must hold. Raises InvalidArgument that names the term."""
    parser = _FilterParser("filter", text, grammar)
    terms = list[SearchTerm]()
    while not parser.is_at_end:
        if terms:
            parser.expect_and()
        if len(terms) >= MAX_TERMS:
            raise _wrong("filter", f"has at most {MAX_TERMS} comparisons")
        terms.append(parser.term())
    return terms


def parse_orders(texts: Sequence[str], grammar: SearchGrammar) -> list[SearchOrder]:
    """The orders, the first counts most. Raises InvalidArgument that names the term."""
    if len(texts) > MAX_TERMS:
        raise _wrong("order_by", f"has at most {MAX_TERMS} fields")
    return [_FilterParser("order_by", text, grammar).order() for text in texts]


def matches(op: str, left: str | float | None, value: Operand) -> bool:
    """Whether a value meets a comparison, as MLflow has it: one that is missing meets IS NULL alone."""
    if op in NULLS:
        return (left is None) is (op == "IS NULL")
    if left is None:
        return False
    if isinstance(value, tuple):
        return (left in value) is (op == "IN")
    if op in ("LIKE", "ILIKE"):
        return is_like(str(left), str(value), any_case=op == "ILIKE")
    if op in ("=", "!="):
        return (left == value) is (op == "=")
    assert isinstance(left, float | int)
    assert isinstance(value, float | int)
    return {"<": left < value, "<=": left <= value, ">": left > value, ">=": left >= value}[op]


def is_like(text: str, pattern: str, *, any_case: bool) -> bool:
    """Whether a text has a pattern of SQL: `%` stands for any text, `_` for any character. In time that grows with the
    product of their lengths at most."""
    if any_case:
        text, pattern = text.lower(), pattern.lower()
    first, *parts = pattern.split("%")
    if not _has_part(text, first, 0):
        return False
    if not parts:
        return len(text) == len(first)
    at = len(first)
    for part in parts[:-1]:
        at = _end_of_part(text, part, at)
        if at < 0:
            return False
    start = len(text) - len(parts[-1])
    return start >= at and _has_part(text, parts[-1], start)


def _has_part(text: str, part: str, at: int) -> bool:
    """Whether a part of a pattern, without `%`, is at that place of a text."""
    if "_" not in part:
        return text.startswith(part, at)
    letters = text[at : at + len(part)]
    return len(letters) == len(part) and all(a in ("_", b) for a, b in zip(part, letters, strict=True))


def _end_of_part(text: str, part: str, at: int) -> int:
    """The end of the first such part of a text from a place on; -1 without one."""
    if "_" not in part:
        found = text.find(part, at)
    else:
        found = next((start for start in range(at, len(text)) if _has_part(text, part, start)), -1)
    return found + len(part) if found >= 0 else -1


class _FilterParser:
    def __init__(self, argument: str, text: str, grammar: SearchGrammar) -> None:
        if len(text) > MAX_LENGTH:
            raise _wrong(argument, f"has at most {MAX_LENGTH:,} characters; this has {len(text):,}")
        self._argument, self._grammar = argument, grammar
        self._tokens = self._scan(text.rstrip().removesuffix(";").rstrip())
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._tokens)

    def expect_and(self) -> None:
        token = self._next("AND")
        if not token.is_word("AND"):
            raise self._wrong(f"joins comparisons by AND; this is {quoted(token.raw)}")

    def term(self) -> SearchTerm:
        field = self._field()
        op = self._operator(field)
        if op in NULLS:
            return SearchTerm(field, op, None)
        if op in ("IN", "NOT IN"):
            return SearchTerm(field, op, self._list(field))
        return SearchTerm(field, op, self._value(field, op))

    def order(self) -> SearchOrder:
        field = self._field(of_words=True)
        if field.kind is FieldKind.DATASET:
            raise self._wrong("sorts by metrics, params, tags and attributes, not by data sets")
        descending = False
        if not self.is_at_end:
            direction = self._next("ASC or DESC")
            if not direction.is_word("ASC", "DESC"):
                raise self._wrong(f"has ASC or DESC behind a field; this is {quoted(direction.raw)}")
            descending = direction.text.upper() == "DESC"
        if not self.is_at_end:
            raise self._wrong(f"has one field in each text; this goes on with {quoted(self._tokens[self._at].raw)}")
        return SearchOrder(field, descending)

    def _field(self, *, of_words: bool = False) -> SearchField:
        token = self._next("a field such as metrics.loss")
        if token.kind == "field":
            before, _, key = token.text.partition(".")
            before = before.strip("`")
            kind = _KINDS.get(before)
            if kind is None or kind not in self._grammar.kinds:
                allowed = ", ".join(dict.fromkeys(f"{kind}s" for kind in FieldKind if kind in self._grammar.kinds))
                raise self._wrong(f"has fields of {allowed}; this is {quoted(token.raw)}")
            key = key[1:-1] if len(key) > 1 and key[0] == key[-1] and key[0] in "\"'`" else key
        elif token.kind in ("word", "back", "double"):
            kind, key = FieldKind.ATTRIBUTE, token.text
            if of_words and token.text.lower() == "run" and not self.is_at_end:  # as in `Run Name DESC`
                key = f"{key} {self._next('a field').text}"
        else:
            raise self._wrong(f"begins a comparison with a field; this is {quoted(token.raw)}")
        if kind is FieldKind.ATTRIBUTE:
            if key not in self._grammar.attributes:
                allowed = ", ".join(dict.fromkeys(self._grammar.attributes.values()))
                raise self._wrong(f"has no attribute {quoted(key)}; there are {allowed}")
            key = self._grammar.attributes[key]
        if kind is FieldKind.DATASET and key not in _DATASET_KEYS:
            raise self._wrong(f"has name, digest and context of data sets; this is {quoted(token.raw)}")
        return SearchField(kind, key)

    def _operator(self, field: SearchField) -> str:
        token = self._next("an operator")
        op = "!=" if token.text == "<>" else token.text.upper()
        if token.is_word("IS"):
            op = "IS NOT NULL" if self._skip("NOT") else "IS NULL"
            self._expect_word("NULL")
        elif token.is_word("NOT"):
            self._expect_word("IN")
            op = "NOT IN"
        allowed: tuple[str, ...] = NUMERIC if self._grammar.is_numeric(field) else TEXTUAL
        if field.kind in (FieldKind.PARAM, FieldKind.TAG):
            allowed += NULLS
        if token.kind not in ("op", "word") or op not in allowed:
            by = ", ".join(allowed)
            raise self._wrong(f"compares {field.kind} {quoted(field.key)} by {by}; this is {quoted(op)}")
        return op

    def _value(self, field: SearchField, op: str) -> float | str:
        token = self._next("a value")
        if self._grammar.is_numeric(field):
            if token.kind != "number":
                raise self._wrong(f"compares {quoted(field.key)} with a number; this is {quoted(token.raw)}")
            return float(token.text) if field.kind is FieldKind.METRIC or "." in token.text else _number(token.text)
        if token.kind not in ("single", "double"):
            raise self._wrong(f"compares {quoted(field.key)} with a text in quotes; this is {quoted(token.raw)}")
        if op in ("LIKE", "ILIKE") and len(token.text) > _MAX_PATTERN:
            raise self._wrong(f"has patterns of at most {_MAX_PATTERN} characters")
        return token.text

    def _list(self, field: SearchField) -> tuple[str, ...]:
        values: list[str] = []
        if self._next("(").kind != "open":
            raise self._wrong(f"has a list in parentheses behind IN, for {quoted(field.key)}")
        while True:
            token = self._next("a text in quotes")
            if token.kind not in ("single", "double"):
                raise self._wrong(f"has lists of texts in quotes; this is {quoted(token.raw)}")
            values.append(token.text)
            end = self._next(", or )")
            if end.kind == "close" or (end.kind == "comma" and self._skip_close()):
                break
            if end.kind != "comma":
                raise self._wrong(f"separates the values of a list by commas; this is {quoted(end.raw)}")
        if len(values) > MAX_VALUES:
            raise self._wrong(f"has lists of at most {MAX_VALUES:,} values")
        return tuple(values)

    def _skip(self, word: str) -> bool:
        if not self.is_at_end and self._tokens[self._at].is_word(word):
            self._at += 1
            return True
        return False

    def _skip_close(self) -> bool:
        if not self.is_at_end and self._tokens[self._at].kind == "close":
            self._at += 1
            return True
        return False

    def _expect_word(self, word: str) -> None:
        token = self._next(word)
        if not token.is_word(word):
            raise self._wrong(f"has {word} here; this is {quoted(token.raw)}")

    def _next(self, wanted: str) -> _Token:
        if self.is_at_end:
            raise self._wrong(f"ends where {wanted} is missing")
        self._at += 1
        return self._tokens[self._at - 1]

    def _scan(self, text: str) -> list[_Token]:
        tokens, at = [], 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._wrong(f"cannot be read from {quoted(text[at : at + 40].strip())} on")
            kind = str(match.lastgroup)
            value = match[kind]
            tokens.append(_Token(kind, value.replace("''", "'") if kind == "single" else value, match[0].strip()))
            at = match.end()
        return tokens

    def _wrong(self, message: str) -> InvalidArgument:
        return _wrong(self._argument, message)


def _number(text: str) -> float:
    return int(text) if text.lstrip("+-").isdecimal() and len(text) < 20 else float(text)


def _wrong(argument: str, message: str) -> InvalidArgument:
    return InvalidArgument(Violation(argument, f"{message}."))
