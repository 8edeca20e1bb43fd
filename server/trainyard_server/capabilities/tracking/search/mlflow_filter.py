"""Filters and orders of MLflow's searches: `metrics.loss < 0.5 AND params."batch size" = '32'`. Pure.

Comparisons are joined by AND alone, as MLflow has it. A name may stand in quotes or backquotes, and an attribute
without `attributes.`. Source: mlflow/utils/search_utils.py of MLflow 3.17.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trainyard_protocol.errors import InvalidArgument, Violation, quoted

if TYPE_CHECKING:
    from lark import Lark, Token

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

_GRAMMAR = r"""
terms: (term (_AND term)*)?
term: _field OP (NUMBER | SINGLE | DOUBLE | FIELD | BACK | WORD)
    | _field IS NOT? NULL
    | _field NOT? IN "(" (SINGLE | DOUBLE) (_COMMA (SINGLE | DOUBLE))* _COMMA? ")"
order: (_field | RUN_NAME) DIRECTION?
_field: FIELD | DOUBLE | BACK | WORD

_AND.2: /AND(?![^\s"'`()=<>!,])/i
IS.2: /IS(?![^\s"'`()=<>!,])/i
NOT.2: /NOT(?![^\s"'`()=<>!,])/i
IN.2: /IN(?![^\s"'`()=<>!,])/i
NULL.2: /NULL(?![^\s"'`()=<>!,])/i
DIRECTION.2: /(ASC|DESC)(?![^\s"'`()=<>!,])/i
OP: /<=|>=|!=|<>|=|<|>|[^\s"'`()=<>!,]+/
NUMBER.3: /[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(?![\w.])/
SINGLE: /'([^']|'')*'/
_COMMA: ","
FIELD.2: /(`\w+`|\w+)\.("[^"]*"|`[^`]*`|'[^']*'|[^\s"'`()=<>!,]+)/
DOUBLE: /"[^"]*"/
BACK: /`[^`]*`/
RUN_NAME.3: /run\s+name(?![^\s"'`()=<>!,])/i
WORD: /[^\s"'`()=<>!,]+/
%ignore /\s+/
"""
_SENTENCES = {
    "DIRECTION": ("ASC or DESC", "has ASC or DESC behind a field"),
    "OP": ("an operator", "has an operator behind a field"),
    "NUMBER": ("a value", "has a value behind an operator"),
    "FIELD": ("a field such as metrics.loss", "begins a comparison with a field"),
    "IN": ("IN", "has IN here"),
    "NULL": ("NULL", "has NULL here"),
    "LPAR": ("(", "has a list in parentheses behind IN"),
    "SINGLE": ("a text in quotes", "has lists of texts in quotes"),
    "_COMMA": (", or )", "separates the values of a list by commas"),
    "_AND": ("AND", "joins comparisons by AND"),
}
"""By the kind of token that may follow: what an end lacks, and the rule that another token breaks."""


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


def parse_filter(text: str, grammar: SearchGrammar) -> list[SearchTerm]:
    """The comparisons, all of which must hold. Raises InvalidArgument that names the term."""
    terms = _parsed("filter", "terms", text)
    if len(terms) > MAX_TERMS:
        raise _wrong("filter", f"has at most {MAX_TERMS} comparisons")
    return [_term(grammar, *term.children) for term in terms]


def parse_orders(texts: Sequence[str], grammar: SearchGrammar) -> list[SearchOrder]:
    """The orders, the first counts most. Raises InvalidArgument that names the term."""
    if len(texts) > MAX_TERMS:
        raise _wrong("order_by", f"has at most {MAX_TERMS} fields")
    return [_order(grammar, *_parsed("order_by", "order", text)) for text in texts]


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


@cache
def _parser() -> "Lark":
    from lark import Lark  # takes 60 ms

    return Lark(_GRAMMAR, start=["terms", "order"], parser="lalr", maybe_placeholders=False)


def _parsed(argument: str, start: str, text: str) -> list[Any]:
    """The parts of what is at the start of the grammar."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    if len(text) > MAX_LENGTH:
        raise _wrong(argument, f"has at most {MAX_LENGTH:,} characters; this has {len(text):,}")
    try:
        return _parser().parse(text.rstrip().removesuffix(";"), start).children
    except UnexpectedCharacters as error:
        rest = text[error.pos_in_stream :][:40].strip()
        raise _wrong(argument, f"cannot be read from {quoted(rest)} on") from None
    except UnexpectedToken as error:
        lacking, wrong = next(
            (sentence for kind, sentence in _SENTENCES.items() if kind in error.expected),
            ("", "has one field in each text"),
        )
        if error.token.type == "$END":
            raise _wrong(argument, f"ends where {lacking} is missing") from None
        raise _wrong(argument, f"{wrong}; this is {quoted(str(error.token))}") from None


def _term(grammar: SearchGrammar, name: "Token", *others: "Token") -> SearchTerm:
    field = _field("filter", grammar, name)
    words = [token for token in others if token.type in ("OP", "IS", "NOT", "NULL", "IN")]
    values = others[len(words) :]
    op = " ".join(words).upper().replace("<>", "!=")
    allowed: tuple[str, ...] = NUMERIC if grammar.is_numeric(field) else TEXTUAL
    if field.kind in (FieldKind.PARAM, FieldKind.TAG):
        allowed += NULLS
    if op not in allowed:
        by = ", ".join(allowed)
        raise _wrong("filter", f"compares {field.kind} {quoted(field.key)} by {by}; this is {quoted(op)}")
    if len(values) > MAX_VALUES:
        raise _wrong("filter", f"has lists of at most {MAX_VALUES:,} values")
    if op in ("IN", "NOT IN"):
        return SearchTerm(field, op, tuple(map(_unquoted, values)))
    return SearchTerm(field, op, _value(grammar, field, op, *values) if values else None)


def _value(grammar: SearchGrammar, field: SearchField, op: str, token: "Token") -> float | str:
    if grammar.is_numeric(field):
        if token.type != "NUMBER":
            raise _wrong("filter", f"compares {quoted(field.key)} with a number; this is {quoted(str(token))}")
        return float(token) if field.kind is FieldKind.METRIC or "." in token else _number(token)
    if token.type not in ("SINGLE", "DOUBLE"):
        raise _wrong("filter", f"compares {quoted(field.key)} with a text in quotes; this is {quoted(str(token))}")
    text = _unquoted(token)
    if op in ("LIKE", "ILIKE") and len(text) > _MAX_PATTERN:
        raise _wrong("filter", f"has patterns of at most {_MAX_PATTERN} characters")
    return text


def _order(grammar: SearchGrammar, name: "Token", direction: str = "ASC") -> SearchOrder:
    field = _field("order_by", grammar, name)
    if field.kind is FieldKind.DATASET:
        raise _wrong("order_by", "sorts by metrics, params, tags and attributes, not by data sets")
    return SearchOrder(field, direction.upper() == "DESC")


def _field(argument: str, grammar: SearchGrammar, token: "Token") -> SearchField:
    kind, key = (
        FieldKind.ATTRIBUTE,
        " ".join(_unquoted(token).split()) if token.type == "RUN_NAME" else _unquoted(token),
    )
    if token.type == "FIELD":
        before, _, key = token.partition(".")
        kind = _KINDS.get(before.strip("`"), kind)
        if before.strip("`") not in _KINDS or kind not in grammar.kinds:
            allowed = ", ".join(dict.fromkeys(f"{kind}s" for kind in FieldKind if kind in grammar.kinds))
            raise _wrong(argument, f"has fields of {allowed}; this is {quoted(str(token))}")
        key = key[1:-1] if len(key) > 1 and key[0] == key[-1] and key[0] in "\"'`" else key
    if kind is FieldKind.ATTRIBUTE:
        if key not in grammar.attributes:
            allowed = ", ".join(dict.fromkeys(grammar.attributes.values()))
            raise _wrong(argument, f"has no attribute {quoted(key)}; there are {allowed}")
        key = grammar.attributes[key]
    if kind is FieldKind.DATASET and key not in _DATASET_KEYS:
        raise _wrong(argument, f"has name, digest and context of data sets; this is {quoted(str(token))}")
    return SearchField(kind, key)


def _unquoted(token: "Token") -> str:
    if token.type == "SINGLE":
        return token[1:-1].replace("''", "'")
    return token[1:-1] if token.type in ("DOUBLE", "BACK") else str(token)


def _number(text: str) -> float:
    return int(text) if text.lstrip("+-").isdecimal() and len(text) < 20 else float(text)


def _wrong(argument: str, message: str) -> InvalidArgument:
    return InvalidArgument(Violation(argument, f"{message}."))
