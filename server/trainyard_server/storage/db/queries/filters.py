"""The filter of a list request: `jobId:rnn* AND (state:FAILED OR labels.team=vision) AND NOT state=QUEUED`.

`parse` is pure; `to_sql` turns what it returns into a condition on the table of jobs.
Fields are jobId, state, owner, errorMessage, labels.KEY, a value of the training input such as
trainingInput.masterConfig.imageUri, createTime, startTime and endTime. `=` compares whole values; a `*` stands for any
text. `:` does the same, but without a `*` it looks into errorMessage and the training input, whatever the case.
A `*` alone is any value: jobs that have none are not found. `!=` is the opposite of `=`; `~` looks for a simple
pattern, of text, `.`, `.*`, `^` and `$`. `<`, `<=`, `>`, `>=` compare times, which are in whole seconds as in answers.
`state:(FAILED CANCELLED)` is any of the values. `note` is a text, as errorMessage; `value_filters` has the fields of
parameters, metrics, origins and studies.
"""

import re
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic.alias_generators import to_camel, to_snake
from sqlalchemy import ColumnElement, and_, false, not_, or_, select
from sqlalchemy.orm import aliased

from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.states import JobState
from trainyard_server.domain.filters import filter_syntax
from trainyard_server.domain.filters.filter_syntax import And, Expression, FilterError, FilterToken, Not, Or, Term
from trainyard_server.storage.db.base.models import JobLabelRow, JobRow
from trainyard_server.storage.db.queries import value_filters
from trainyard_server.storage.db.queries.like import escaped, like
from trainyard_server.storage.db.queries.reader import UNFINISHED_JOBS, Label, Reader

_TIMES = {"createTime": "created_at", "startTime": "started_at", "endTime": "ended_at"}
_SPELLINGS = {
    "job_id": "jobId",
    "create_time": "createTime",
    "start_time": "startTime",
    "end_time": "endTime",
    "error_message": "errorMessage",
}
_FIELDS = ("jobId", "state", "owner", "project", "errorMessage", "note", *_TIMES)
_INPUT, _LABELS = "trainingInput.", "labels."
_INPUT_FIELD = re.compile(r"(?:trainingInput|training_input)((?:\.[A-Za-z][A-Za-z0-9_]*){1,8})")
_SECOND = timedelta(seconds=1)
_LAST = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
_PATTERN = re.compile(r"\\(?P<escaped>.)|(?P<any>\.\*)|(?P<one>\.)|(?P<special>[\[\](){}+?|*^$\\])|(?P<plain>.)", re.S)
_OPERATORS = ": = != ~ < <= > >="
_EQUALITY = (":", "=", "!=")


Rename = Callable[[FilterToken, FilterToken], tuple[FilterToken, FilterToken]]
"""Makes a field and a value of ours from those of another API."""


def parse(text: str, rename: Rename | None = None) -> Expression | None:
    """None for an empty filter. Raises InvalidArgument that shows the column where it went wrong."""

    def term(name: FilterToken, op: FilterToken, value: FilterToken) -> Term:
        if rename is not None:
            name, value = rename(name, value)
        return _term(name, op, value)

    return filter_syntax.parse(text, term, _OPERATORS)


Common = Label | Term


def to_sql(expression: Expression, common: Collection[Common] = frozenset()) -> ColumnElement[bool]:
    """`common`: what so many jobs have that a look at each job is faster than a list of those jobs (`common_in`)."""
    match expression:
        case And(parts):
            return and_(*(to_sql(part, common) for part in parts))
        case Or(parts):
            named = [part for part in parts if isinstance(part, Term) and part.field == "state" and part.op != "!="]
            states = {state for part in named for state in _states(part.op, part.value)}
            others = (to_sql(part, common) for part in parts if part not in named)
            return or_(*([_in_states(states)] if named else []), *others)
        case Not(part):
            return not_(to_sql(part, common))
        case Term(field, op, value):
            if value_filters.is_value(field):
                return value_filters.condition(expression, is_frequent=expression in common)
            return _condition(field, op, value, common)


def common_in(reader: Reader, expression: Expression) -> frozenset[Common]:
    """Labels and terms of the expression that many jobs have, for `to_sql`."""
    return reader.common_labels(labels_of(expression)) | value_filters.frequent(reader.session, expression)


def all_in(expression: Expression) -> frozenset[Common]:
    """All labels and terms of the expression, for `to_sql`."""
    return frozenset((*labels_of(expression), *value_filters.terms(expression)))


def finds_trials(expression: Expression | None) -> bool:
    """Whether the expression names a study: then its trials are meant, which no list has otherwise."""
    return any(term.field == value_filters.STUDY for term in value_filters.terms(expression))


def labels_of(expression: Expression) -> Iterator[Label]:
    """The labels that the expression names as a whole: name and value, or any value (None)."""
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from labels_of(part)
        case Not(part):
            yield from labels_of(part)
        case Term(field, op, value) if field.startswith(_LABELS) and op != "~":
            if value == "*" or "*" not in value:
                yield field.removeprefix(_LABELS), None if value == "*" else value


def _term(name: FilterToken, op: FilterToken, value: FilterToken) -> Term:
    field = _field(name)
    if op.text not in _OPERATORS.split():
        raise FilterError(op.column, f"one of {_OPERATORS} is expected after {name.text}.")
    if op.text == "~" and not value_filters.is_value(field):
        _check_pattern(field, value)
    elif field == "state" and "*" not in value.text and value.text.upper() not in JobState.__members__:
        hint = did_you_mean(value.text.upper(), JobState.__members__)
        allowed = ", ".join(JobState.__members__)
        raise FilterError(value.column, f"{value.text!r} is not a state; states are {allowed}. {hint}")
    if value_filters.is_value(field):
        value_filters.check(field, op, value)
    elif field in _TIMES:
        if value.text != "*" or op.text not in _EQUALITY:
            try:
                _time(value.text)
            except ValueError:
                rule = "a time looks like 2026-11-20T10:00:00Z"
                raise FilterError(value.column, f"{value.text!r} is not a time; {rule}.") from None
    elif op.text not in (*_EQUALITY, "~"):
        raise FilterError(op.column, f"{op.text} compares times; {field} takes : = != and ~.")
    text = value.text.upper() if field == "state" else value.text
    return Term(field, op.text, text)


def _field(name: FilterToken) -> str:
    field = _SPELLINGS.get(name.text, name.text)
    if field in _FIELDS or (field.startswith(_LABELS) and field != _LABELS):
        return field
    if inside := _INPUT_FIELD.fullmatch(field):
        return _INPUT + ".".join(to_camel(to_snake(part)) for part in inside[1].lstrip(".").split("."))
    if value := value_filters.value_field(name.text):
        return value
    further = ("labels.KEY", "params.NAME", "metrics.NAME", "trainingInput.FIELD", "origin.commit", "origin.branch")
    allowed = ", ".join((*_FIELDS, *further, "origin.dirty", "study"))
    hint = did_you_mean(field, _FIELDS)
    raise FilterError(name.column, f"{name.text!r} cannot be filtered by; fields are {allowed}. {hint}")


def _check_pattern(field: str, value: FilterToken) -> None:
    if field in _TIMES:
        raise FilterError(value.column, f"~ looks into texts; {field} is a time.")
    if problem := next((match["special"] for match in _pattern_parts(value.text) if match["special"]), ""):
        raise FilterError(
            value.column,
            f"~ takes text, `.`, `.*`, `^` at the start and `$` at the end; {problem!r} is written as \\{problem}.",
        )


def _condition(field: str, op: str, value: str, common: Collection[Common]) -> ColumnElement[bool]:
    if field in _TIMES:
        column = getattr(JobRow, _TIMES[field])
        if value == "*":
            return column.is_(None) if op == "!=" else column.is_not(None)  # type: ignore[no-any-return]
        return _compare(column, op, _time(value))
    search = _search(field, op, value)
    if field == "state":
        matches = _in_states(_states(op, value))
    elif field in _COLUMNS:
        column = _COLUMNS[field]
        matches = column != "" if value == "*" else search(column, value)
    elif field.startswith(_LABELS):
        labelled = select(JobLabelRow.job_key).where(JobLabelRow.name == field.removeprefix(_LABELS))
        if value != "*":
            labelled = labelled.where(search(JobLabelRow.value, value))
        rare = set(labels_of(Term(field, op, value))).difference(common)
        matches = (
            JobRow.key.in_(labelled)
            if rare
            else labelled.where(JobLabelRow.job_key == JobRow.key).correlate(JobRow).exists()
        )
    else:
        column = JobRow.training_input[tuple(field.removeprefix(_INPUT).split("."))].as_string()
        present = column.is_not(None)
        matches = present if value == "*" else and_(present, search(column, value))
    return not_(matches) if op == "!=" else matches


def _search(field: str, op: str, value: str) -> Callable[[Any, str], ColumnElement[bool]]:
    if op == "~":
        return _pattern_like
    looks_inside = op == ":" and "*" not in value and (field in ("errorMessage", "note") or field.startswith(_INPUT))
    return (lambda column, value: column.icontains(value, autoescape=True)) if looks_inside else like


def _states(op: str, value: str) -> set[JobState]:
    """The states that a term names."""
    glob = _glob(value) if op == "~" else value
    return {state for state in JobState if _matches(glob, state)}


def _in_states(states: Collection[JobState]) -> ColumnElement[bool]:
    """Few of all jobs have not ended: those are looked up, where only such states are asked for."""
    if not states:
        return false()
    chosen = [state for state in JobState if state in states]
    if set(chosen).issubset(UNFINISHED_JOBS):
        job = aliased(JobRow)
        return JobRow.key.in_(select(job.key).where(job.state.in_(chosen)))
    return JobRow.state.in_(chosen)


_COLUMNS = {
    "jobId": JobRow.job_id,
    "owner": JobRow.owner,
    "errorMessage": JobRow.error_message,
    "note": JobRow.note,
    "project": JobRow.project,
}


def _pattern_parts(pattern: str) -> Iterator[re.Match[str]]:
    """The parts of a pattern of `~` between the anchors."""
    return _PATTERN.finditer(pattern.removeprefix("^").removesuffix("$"))


def _ends(pattern: str, anything: str) -> tuple[str, str]:
    return "" if pattern.startswith("^") else anything, "" if pattern.endswith("$") else anything


def _glob(pattern: str) -> str:
    """The pattern for `_matches`. One character, which that does not know, is any text: states differ by more."""
    start, end = _ends(pattern, "*")
    return (
        start
        + "".join("*" if m["any"] or m["one"] else m["escaped"] or m["plain"] for m in _pattern_parts(pattern)).upper()
        + end
    )


def _pattern_like(column: Any, pattern: str) -> ColumnElement[bool]:
    start, end = _ends(pattern, "%")

    def part(match: re.Match[str]) -> str:
        if match["any"] or match["one"]:
            return "%" if match["any"] else "_"
        return escaped(match["escaped"] or match["plain"])

    like: ColumnElement[bool] = column.like(start + "".join(map(part, _pattern_parts(pattern))) + end, escape="\\")
    return like


def _compare(column: Any, op: str, time: datetime) -> ColumnElement[bool]:
    """Compare with a time. Answers have whole seconds: a time without a fraction is that second."""
    after = time if time.microsecond else min(time, _LAST) + _SECOND
    same = column == time if time.microsecond else and_(column >= time, column < after)
    comparisons: dict[str, ColumnElement[bool]] = {
        ":": same,
        "=": same,
        "!=": not_(same),
        "<": column < time,
        "<=": column <= time if time.microsecond else column < after,
        ">": column > time if time.microsecond else column >= after,
        ">=": column >= time,
    }
    return and_(column.is_not(None), comparisons[op])


def _matches(pattern: str, text: str) -> bool:
    """Whether a text has a pattern, in which `*` is any text. Looks at each of its parts once: no regular expression is
    made of what a user writes, since one may take exponential time."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *middle, last = others
    if not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        position = text.find(part, at, end)
        if position < 0:
            return False
        at = position + len(part)
    return at <= end


def _time(text: str) -> datetime:
    """Raises ValueError, also for a time that is beyond the calendar in UTC."""
    time = datetime.fromisoformat(text)
    try:
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error
