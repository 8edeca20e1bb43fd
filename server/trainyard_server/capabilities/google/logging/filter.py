"""Filters of Cloud Logging on the lines of jobs. Pure.

`resource.labels.job_id="J" AND severity>=ERROR AND timestamp>="2026-11-20T10:00:00Z"`. Texts are compared in any case,
`:` finds a part of a text, `:*` any value, `=~` a pattern, and a text alone is looked for in every field. Comparisons
with a label or a field of a payload that an entry does not have are false; other fields are then empty.
Source: https://cloud.google.com/logging/docs/view/logging-query-language
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.fields import did_you_mean
from trainyard_server.domain.filters import filter_syntax
from trainyard_server.domain.filters.filter_syntax import (
    And,
    Expression,
    FilterError,
    FilterToken,
    MakeCall,
    Not,
    Or,
    Term,
)
from trainyard_server.domain.filters.text_patterns import PatternError, pattern

JOB_ID = "resource.labels.job_id"
TRIAL_JOB = "own_job_id"
"""The id of a trial's own job, which `JOB_ID` finds beside its study's."""

_OPERATORS = ": = != < <= > >= =~ !~"
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FIELDS = (
    "timestamp",
    "receiveTimestamp",
    "severity",
    "insertId",
    "textPayload",
    "jsonPayload",
    "protoPayload",
    "logName",
    "resource",
    "resource.type",
    "resource.labels",
    "labels",
    "httpRequest",
    "operation",
    "sourceLocation",
    "metadata",
    "split",
    "trace",
    "spanId",
    "traceSampled",
)
_LABELS = (JOB_ID, "resource.labels.task_name", "labels.task_name", "labels.trial_id")
_PAYLOADS_AND_LABELS = ("jsonPayload.", "protoPayload.", "resource.labels.", "labels.")
"""Fields in which an entry has whatever it has; the other fields are those of every entry."""

_MESSAGES = (*_PAYLOADS_AND_LABELS, "httpRequest.", "operation.", "sourceLocation.", "metadata.", "split.")
_SEARCHED = ("textPayload", "jsonPayload", "logName", JOB_ID, "resource.labels.task_name", "severity")
"""Fields that a text alone is looked for in."""
_SPELLINGS = {
    "receiveTimestamp": "timestamp",
    "resource.labels.trial_id": "labels.trial_id",
    "labels.ml.googleapis.com/job_id": JOB_ID,
}
_SEARCH = ""  # the field of a text alone
_PRESENT = ":*"
_WORDS = "words"
"""The operator of SEARCH: has all words of the value."""

_WORD = re.compile(r"[^\W_]+")
_LEVEL = re.compile(r"\d{1,9}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_POSITIVE = {"!=": "=", "!~": "=~"}
_ALSO = {_SEARCH: _SEARCHED, JOB_ID: (JOB_ID, TRIAL_JOB)}
"""Fields of which one must match."""

_LEVELS = {
    "DEFAULT": 0,
    "DEBUG": 100,
    "INFO": 200,
    "NOTICE": 300,
    "WARNING": 400,
    "ERROR": 500,
    "CRITICAL": 600,
    "ALERT": 700,
    "EMERGENCY": 800,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 2**62
"""Later than any time of a line, in microseconds."""


ValueOf = Callable[[str], str | None]
"""The value of a field of a line as text; None where it has none."""


@dataclass(frozen=True, slots=True)
class LoggingFilter:
    """A filter of lines. `jobs`: the ids of the jobs that all lines are of, None for any. `earliest` and `latest`:
    microseconds since 1970 between which all that it passes lies."""

    jobs: frozenset[str] | None
    expression: Expression | None
    earliest: int
    latest: int

    def passes(self, time: int, value_of: ValueOf) -> bool:
        """Whether a line passes, of a time in microseconds and with these values of other fields."""
        return self.expression is None or _passes(self.expression, time, value_of)


def parse(text: str) -> LoggingFilter:
    """Raises InvalidArgument."""
    expression = filter_syntax.parse(text, _term, _OPERATORS, make_search=_search, functions=_FUNCTIONS)
    if expression is None:
        return LoggingFilter(None, None, 0, LATEST)
    return LoggingFilter(_jobs_of(expression), expression, *_extent(expression))


def microseconds(text: str) -> int:
    """Microseconds since 1970 of a time. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _search(text: FilterToken) -> Term:
    return Term(_SEARCH, ":", text.text)


def _log_id(name: FilterToken, arguments: list[FilterToken]) -> Term:
    if len(arguments) != 1:
        raise FilterError(name.column, 'log_id has one value, as in log_id("master-replica-0").')
    return Term("resource.labels.task_name", "=", arguments[0].text)


def _search_words(name: FilterToken, arguments: list[FilterToken]) -> Term:
    if len(arguments) not in (1, 2):
        raise FilterError(name.column, 'SEARCH has a text, or a field and a text: SEARCH(textPayload, "loss").')
    *fields, text = arguments
    field = _field(fields[0]) if fields else _SEARCH
    if field == "timestamp":
        raise FilterError(name.column, "SEARCH looks into texts; timestamp is a time.")
    if "`" in text.text:
        raise FilterError(text.column, 'SEARCH does not support phrases in backticks; use textPayload:"a b".')
    if not _words(text.text):
        raise FilterError(text.column, f"{text.text!r} has no word to search for.")
    return Term(field, _WORDS, text.text)


_FUNCTIONS: Mapping[str, MakeCall] = {"log_id": _log_id, "SEARCH": _search_words}


def _field(name: FilterToken) -> str:
    head, dot, rest = name.text.partition(".")
    field = f"{to_camel(head) if '_' in head else head}{dot}{rest}"
    field = _SPELLINGS.get(field, field)
    if field in _FIELDS or (field.startswith(_MESSAGES) and not field.endswith(".")):
        return field
    fields = (*_FIELDS, *_LABELS, "jsonPayload.FIELD", "labels.KEY")
    raise FilterError(
        name.column,
        f"{name.text!r} cannot be filtered by; fields are {', '.join(fields)}. {did_you_mean(field, fields)}",
    )


def _term(name: FilterToken, op: FilterToken, value: FilterToken) -> Term:
    field = _field(name)
    if op.text not in _OPERATORS.split():
        raise FilterError(op.column, f"one of {_OPERATORS} is expected after {name.text}.")
    if op.text == ":" and value.kind == "word" and value.text == "*":
        return Term(field, _PRESENT, "")
    if op.text in ("=~", "!~"):
        if field == "timestamp":
            raise FilterError(op.column, f"{op.text} looks into texts; timestamp is a time.")
        _check_pattern(value)
        return Term(field, op.text, value.text)
    if field == "timestamp":
        try:
            return Term(field, "=" if op.text == ":" else op.text, str(microseconds(value.text)))
        except (ValueError, OverflowError):
            raise FilterError(
                value.column, f"{value.text!r} is not a time; a time looks like 2026-11-20T10:00:00Z."
            ) from None
    if field == "severity":
        level = int(value.text) if _LEVEL.fullmatch(value.text) else _LEVELS.get(value.text.upper())
        if level is None:
            levels = ", ".join(f"{name} ({number})" for name, number in _LEVELS.items())
            raise FilterError(value.column, f"{value.text!r} is not a severity; allowed: {levels}.")
        return Term(field, "=" if op.text == ":" else op.text, str(level))
    return Term(field, op.text, value.text)


def _jobs_of(expression: Expression) -> frozenset[str] | None:
    """The jobs that all lines must be of; None if that is not said."""
    match expression:
        case Term(field, "=", value) if field == JOB_ID:
            return frozenset((value,))
        case And(parts):
            named = [jobs for jobs in map(_jobs_of, parts) if jobs is not None]
            return min(named, key=len) if named else None
        case Or(parts):
            jobs_of_parts = [_jobs_of(part) for part in parts]
            return None if None in jobs_of_parts else frozenset().union(*filter(None, jobs_of_parts))
        case _:
            return None


def _extent(expression: Expression) -> tuple[int, int]:
    """The first and the last time of what an expression can pass."""
    match expression:
        case Term("timestamp", op, value):
            time = int(value)
            return {
                "=": (time, time),
                "<": (0, time - 1),
                "<=": (0, time),
                ">": (time + 1, LATEST),
                ">=": (time, LATEST),
            }.get(op, (0, LATEST))
        case And(parts):
            extents = [_extent(part) for part in parts]
            return max(first for first, _ in extents), min(last for _, last in extents)
        case Or(parts):
            extents = [_extent(part) for part in parts]
            return min(first for first, _ in extents), max(last for _, last in extents)
        case _:
            return 0, LATEST


def _passes(expression: Expression, time: int, value_of: ValueOf) -> bool:
    match expression:
        case And(parts):
            return all(_passes(part, time, value_of) for part in parts)
        case Or(parts):
            return any(_passes(part, time, value_of) for part in parts)
        case Not(part):
            return not _passes(part, time, value_of)
        case Term("timestamp", op, value):
            return op == _PRESENT or _COMPARISONS[op](time, int(value))
        case Term("severity", op, value) if op in _COMPARISONS:
            return _COMPARISONS[op](_LEVELS[value_of("severity") or "DEFAULT"], int(value))
        case Term(field, op, value):
            return _compares(field, op, value, value_of)


def _compares(field: str, op: str, value: str, value_of: ValueOf) -> bool:
    values = [own for name in _ALSO.get(field, (field,)) if (own := value_of(name)) is not None]
    if op == _PRESENT:
        return bool(values)
    if op == _WORDS:
        return _words(value) <= frozenset().union(*map(_words_of_line, values))
    if not values and field.startswith(_PAYLOADS_AND_LABELS):
        return False
    positive, is_json = _POSITIVE.get(op, op), field.startswith("jsonPayload.")
    return any(_matches(own, positive, value, is_json) for own in values or ("",)) == (positive == op)


def _matches(own: str, op: str, value: str, is_json: bool) -> bool:
    if op == "=~":
        return pattern(value).is_in(own)
    if op == ":":
        return value.casefold() in own.casefold()
    if is_json and _NUMBER.fullmatch(own) and _NUMBER.fullmatch(value):
        return _COMPARISONS[op](float(own), float(value))
    return _COMPARISONS[op](own.casefold(), value.casefold())


def _words_of_line(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


_words = lru_cache(maxsize=256)(_words_of_line)


def _check_pattern(value: FilterToken) -> None:
    try:
        pattern(value.text)
    except PatternError as error:
        raise FilterError(value.column, str(error)) from None
