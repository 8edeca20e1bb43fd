"""Filters of Cloud Logging on the lines of one job. Pure.

`resource.labels.job_id="J" AND severity>=ERROR AND timestamp>="2026-11-20T10:00:00Z"`. Texts are compared in any case,
`:` finds a part of a text. Source: https://cloud.google.com/logging/docs/view/logging-query-language
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

JOB_ID = "resource.labels.job_id"
_OPERATORS = ": = != < <= > >="
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
)
_SPELLINGS = {
    "insert_id": "insertId",
    "log_name": "logName",
    "text_payload": "textPayload",
}
_ORDERED = ("timestamp", "severity", "insertId")
_LEVELS = {"DEFAULT": 0, **{name: number for number, name in enumerate(SEVERITIES, 1)}}
_LEVELS |= {"ALERT": _LEVELS["CRITICAL"] + 1, "EMERGENCY": _LEVELS["CRITICAL"] + 2}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 2**62
"""Later than any time of a line, in microseconds."""


@dataclass(frozen=True, slots=True)
class LoggingFilter:
    """A filter of one job's lines. `earliest` and `latest`: microseconds since 1970 between which all that it passes
    lies."""

    job_id: str
    expression: Expression
    earliest: int
    latest: int

    def passes(self, time: int, fields: Mapping[str, str]) -> bool:
        """Whether a line passes, of a time in microseconds and with the other fields as text."""
        return _passes(self.expression, time, fields)


def parse(text: str) -> LoggingFilter | None:
    """None for a filter that names no job: whose lines it asks for. Raises InvalidArgument."""
    expression = filter_syntax.parse(text, _term, _OPERATORS)
    job_id = "" if expression is None else _job_of(expression)
    if expression is None or not job_id:
        return None
    return LoggingFilter(job_id, expression, *_extent(expression))


def microseconds(text: str) -> int:
    """Microseconds since 1970 of a time. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _term(name: FilterToken, op: FilterToken, value: FilterToken) -> Term:
    field = _SPELLINGS.get(name.text, name.text)
    if field not in _FIELDS:
        hint = did_you_mean(field, _FIELDS)
        raise FilterError(
            name.column, f"{name.text!r} cannot be filtered by; fields are {', '.join(_FIELDS)}. {hint}"
        )
    if op.text not in _OPERATORS.split():
        raise FilterError(op.column, f"one of {_OPERATORS} is expected after {name.text}.")
    if op.text[0] in "<>" and field not in _ORDERED:
        raise FilterError(op.column, f"{op.text} compares {', '.join(_ORDERED)}; {field} takes : = and !=.")
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


def _job_of(expression: Expression) -> str:
    """The job that all lines must be of; "" if that is not said."""
    match expression:
        case Term(field, op, value) if field == JOB_ID and op == "=":
            return value
        case And(parts):
            return next(filter(None, map(_job_of, parts)), "")
        case _:
            return ""


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


def _passes(expression: Expression, time: int, fields: Mapping[str, str]) -> bool:
    match expression:
        case And(parts):
            return all(_passes(part, time, fields) for part in parts)
        case Or(parts):
            return any(_passes(part, time, fields) for part in parts)
        case Not(part):
            return not _passes(part, time, fields)
        case Term("timestamp", op, value):
            return _COMPARISONS[op](time, int(value))
        case Term("severity", op, value):
            return _COMPARISONS[op](_LEVELS[fields["severity"]], _LEVELS[value])
        case Term(field, op, value):
            own, text = fields.get(field, "").casefold(), value.casefold()
            return text in own if op == ":" else _COMPARISONS[op](own, text)
