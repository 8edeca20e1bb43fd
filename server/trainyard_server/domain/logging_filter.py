"""Filters of Cloud Logging on the lines of jobs. Pure.

`resource.labels.job_id="J" AND severity>=ERROR AND timestamp>="2026-11-20T10:00:00Z"`. Texts are compared in any case,
`:` finds a part of a text, `:*` any value, `=~` a pattern, and a text alone is looked for in every field.
Source: https://cloud.google.com/logging/docs/view/logging-query-language
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard_protocol.config.fields import did_you_mean
from trainyard_protocol.severity import SEVERITIES
from trainyard_server.domain import filter_syntax
from trainyard_server.domain.filter_syntax import And, Expression, FilterError, FilterToken, Not, Or, Term
from trainyard_server.domain.text_patterns import PatternError, pattern

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
    "severity",
    "insertId",
    "textPayload",
    "jsonPayload.message",
    "logName",
    "resource.type",
    JOB_ID,
    "resource.labels.project_id",
    "resource.labels.task_name",
    "labels.task_name",
    "labels.trial_id",
    "labels.ml.googleapis.com/task_name",
    "labels.ml.googleapis.com/trial_id",
)
_JSON = "jsonPayload."
_SEARCHED = ("textPayload", "jsonPayload", "logName", JOB_ID, "resource.labels.task_name", "severity")
"""Fields that a text alone is looked for in."""
_SPELLINGS = {
    "insert_id": "insertId",
    "log_name": "logName",
    "text_payload": "textPayload",
    "json_payload": "jsonPayload",
    "resource.labels.trial_id": "labels.trial_id",
}
_SEARCH = ""  # the field of a text alone
_PRESENT = ":*"
_ALSO = {_SEARCH: _SEARCHED, JOB_ID: (JOB_ID, TRIAL_JOB)}
"""Fields of which one must match."""

_ORDERED = ("timestamp", "severity", "insertId")
_LEVELS = {"DEFAULT": 0, **{name: number for number, name in enumerate(SEVERITIES, 1)}}
_LEVELS |= {"ALERT": _LEVELS["CRITICAL"] + 1, "EMERGENCY": _LEVELS["CRITICAL"] + 2}
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
    expression = filter_syntax.parse(text, _term, _OPERATORS, make_search=_search)
    if expression is None:
        return LoggingFilter(None, None, 0, LATEST)
    return LoggingFilter(_jobs_of(expression), expression, *_extent(expression))


def microseconds(text: str) -> int:
    """Microseconds since 1970 of a time. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _search(text: FilterToken) -> Term:
    return Term(_SEARCH, ":", text.text)


def _term(name: FilterToken, op: FilterToken, value: FilterToken) -> Term:
    field = _SPELLINGS.get(name.text, name.text)
    if field.startswith("json_payload."):
        field = _JSON + field.partition(".")[2]
    if field not in (*_FIELDS, "jsonPayload") and not field.startswith(_JSON):
        hint = did_you_mean(field, _FIELDS)
        raise FilterError(
            name.column,
            f"{name.text!r} cannot be filtered by; fields are {', '.join(_FIELDS)}, jsonPayload.FIELD. {hint}",
        )
    if op.text not in _OPERATORS.split():
        raise FilterError(op.column, f"one of {_OPERATORS} is expected after {name.text}.")
    if op.text[0] in "<>" and field not in _ORDERED:
        raise FilterError(
            op.column, f"{op.text} compares {', '.join(_ORDERED)}; {field} takes : = != =~ and !~."
        )
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
        level = value.text.upper()
        if level not in _LEVELS:
            raise FilterError(value.column, f"{value.text!r} is no severity; they are {', '.join(_LEVELS)}.")
        return Term(field, "=" if op.text == ":" else op.text, level)
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
            found = [_jobs_of(part) for part in parts]
            return None if None in found else frozenset().union(*filter(None, found))
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
            return _COMPARISONS[op](_LEVELS[value_of("severity") or "DEFAULT"], _LEVELS[value])
        case Term(field, op, value):
            return any(_matches(value_of(one), op, value) for one in _ALSO.get(field, (field,)))


def _matches(own: str | None, op: str, value: str) -> bool:
    if op == _PRESENT:
        return own is not None
    if op in ("=~", "!~"):
        return (own is not None and pattern(value).is_in(own)) == (op == "=~")
    folded, text = (own or "").casefold(), value.casefold()
    return text in folded if op == ":" else _COMPARISONS[op](folded, text)


def _check_pattern(value: FilterToken) -> None:
    try:
        pattern(value.text)
    except PatternError as error:
        raise FilterError(value.column, str(error)) from None
