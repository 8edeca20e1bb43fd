"""The filter of a list request: `jobId:rnn* AND (state:FAILED OR labels.team=vision) AND NOT state=QUEUED`.

`parse` is pure; `to_sql` turns what it returns into a condition on the table of jobs.
Fields are jobId, state, owner, labels.KEY, createTime, startTime and endTime. `=` compares whole values, `:` too
where there is no `*`; a `*` stands for any text. `!=` is the opposite of `=`; `<`, `<=`, `>`, `>=` compare
times. AND binds tighter than OR, and terms side by side are joined by AND; NOT or `-` negates.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, false, not_, or_, true

from trainyard_protocol.config.fields import did_you_mean
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.states import JobState
from trainyard_server.storage.db.models import JobRow

_TOKEN = re.compile(
    r"""\s*(?:(?P<open>\()|(?P<close>\))|(?P<op><=|>=|!=|[:=<>])|(?P<minus>-(?=[A-Za-z(]))
    |"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s()"=:<>!]+))""",
    re.X,
)
_TIMES = {"createTime": "created_at", "startTime": "started_at", "endTime": "ended_at"}
_SPELLINGS = {
    "job_id": "jobId",
    "create_time": "createTime",
    "start_time": "startTime",
    "end_time": "endTime",
}
_FIELDS = ("jobId", "state", "owner", *_TIMES)
_MAX_TERMS = 200
_MAX_LENGTH = 4000  # characters


@dataclass(frozen=True, slots=True)
class Term:
    """`field op value`; the field in its camelCase spelling."""

    field: str
    op: str
    value: str


@dataclass(frozen=True, slots=True)
class Not:
    part: "Expression"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple["Expression", ...]


Expression = Term | Not | And | Or


def parse(text: str) -> Expression | None:
    """None for an empty filter. Raises InvalidArgument that shows the column where it went wrong."""
    if len(text) > _MAX_LENGTH:
        message = f"may have {_MAX_LENGTH} characters; this has {len(text)}."
        raise InvalidArgument(Violation("filter", message))
    if not text.strip():
        return None
    parser = _Parser(text)
    expression = parser.any_of()
    parser.expect_end()
    return expression


def to_sql(expression: Expression) -> ColumnElement[bool]:
    match expression:
        case And(parts):
            return and_(*map(to_sql, parts))
        case Or(parts):
            return or_(*map(to_sql, parts))
        case Not(part):
            return not_(to_sql(part))
        case Term(field, op, value):
            return _condition(field, op, value)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


class _Parser:
    """Recursive descent over the tokens of one filter."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan())
        self._at = 0
        self._terms = 0

    def any_of(self) -> Expression:
        parts = [self._all_of()]
        while self._skip_word("OR"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def expect_end(self) -> None:
        if token := self._peek():
            raise self._wrong(token.column, f"{token.text!r} does not belong here.")

    def _all_of(self) -> Expression:
        parts = [self._one()]
        while (token := self._peek()) and token.kind != "close" and not self._is_word("OR"):
            self._skip_word("AND")
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self) -> Expression:
        token = self._next("a condition such as state:FAILED")
        self._terms += 1
        if self._terms > _MAX_TERMS:
            raise self._wrong(
                token.column,
                f"a filter may have at most {_MAX_TERMS} terms; NOT and parentheses count as terms.",
            )
        if token.kind == "minus" or (token.kind == "word" and token.text == "NOT"):
            return Not(self._one())
        if token.kind == "open":
            inside = self.any_of()
            closing = self._next("a closing parenthesis")
            if closing.kind != "close":
                raise self._wrong(closing.column, "a closing parenthesis is missing.")
            return inside
        if token.kind != "word" or token.text in ("AND", "OR"):
            raise self._wrong(token.column, f"a field's name is expected; this is {token.text!r}.")
        return self._term(token)

    def _term(self, name: _Token) -> Term:
        field = self._field(name)
        op = self._next("one of : = != < <= > >=")
        if op.kind != "op":
            raise self._wrong(op.column, f"one of : = != < <= > >= is expected after {name.text}.")
        value = self._value()
        if field == "state" and "*" not in value.text and value.text.upper() not in JobState.__members__:
            hint = did_you_mean(value.text.upper(), JobState.__members__)
            allowed = ", ".join(JobState.__members__)
            raise self._wrong(value.column, f"{value.text!r} is not a state; states are {allowed}. {hint}")
        if field in _TIMES:
            self._check_time(value)
        elif op.text not in (":", "=", "!="):
            raise self._wrong(op.column, f"{op.text} compares times; {field} takes : = and !=.")
        text = value.text.upper() if field == "state" else value.text
        return Term(field, op.text, text)

    def _field(self, name: _Token) -> str:
        field = _SPELLINGS.get(name.text, name.text)
        if field in _FIELDS or (field.startswith("labels.") and field != "labels."):
            return field
        allowed = ", ".join((*_FIELDS, "labels.KEY"))
        hint = did_you_mean(field, _FIELDS)
        raise self._wrong(name.column, f"{name.text!r} cannot be filtered by; fields are {allowed}. {hint}")

    def _value(self) -> _Token:
        """One value. A time has colons of its own, so words and colons that touch belong together."""
        first = self._next("a value")
        if first.kind == "minus":
            number = self._value()
            return _Token("word", f"-{number.text}", first.column)
        if first.kind not in ("word", "quoted"):
            raise self._wrong(first.column, f"a value is expected; this is {first.text!r}.")
        text, end = first.text, first.column + len(first.text)
        while first.kind == "word" and (token := self._peek()) and token.column == end and token.text == ":":
            colon = self._next("")
            after = self._peek()
            text += colon.text
            end += 1
            if after and after.kind == "word" and after.column == end:
                text += self._next("").text
                end += len(after.text)
        return _Token(first.kind, text, first.column)

    def _check_time(self, value: _Token) -> None:
        try:
            _time(value.text)
        except ValueError:
            raise self._wrong(
                value.column, f"{value.text!r} is not a time; a time looks like 2026-11-20T10:00:00Z."
            ) from None

    def _scan(self) -> list[_Token]:
        tokens, at = [], 0
        end = len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None:
                column = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                raise self._wrong(column, f"{self._text[column]!r} is not understood.")
            kind = match.lastgroup or ""
            text = match[kind]
            column = match.start(kind)
            if kind == "quoted":
                text = re.sub(r"\\(.)", r"\1", text)
            tokens.append(_Token(kind, text, column))
            at = match.end()
        return tokens

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, expected: str) -> _Token:
        token = self._peek()
        if token is None:
            raise self._wrong(len(self._text.rstrip()), f"it ends where {expected} is expected.")
        self._at += 1
        return token

    def _is_word(self, word: str) -> bool:
        token = self._peek()
        return token is not None and token.kind == "word" and token.text == word

    def _skip_word(self, word: str) -> bool:
        if self._is_word(word):
            self._at += 1
            return True
        return False

    def _wrong(self, column: int, message: str) -> InvalidArgument:
        shown = f"{self._text}\n{' ' * column}^"
        return InvalidArgument(Violation("filter", f"column {column + 1}: {message.strip()}\n{shown}"))


def _condition(field: str, op: str, value: str) -> ColumnElement[bool]:
    if field in _TIMES:
        return _compare(getattr(JobRow, _TIMES[field]), op, _time(value))
    if field == "state":
        states = [state for state in JobState if _matches(value, state)]
        matches: ColumnElement[bool] = JobRow.state.in_(states) if states else false()
    elif field == "jobId":
        matches = _like(JobRow.job_id, value)
    elif field == "owner":
        matches = _like(JobRow.owner, value)
    else:
        label = JobRow.labels[field.removeprefix("labels.")].as_string()
        present = label.is_not(None)
        matches = present if value == "*" else and_(present, _like(label, value))
    return not_(matches) if op == "!=" else matches


def _compare(column: Any, op: str, time: datetime) -> ColumnElement[bool]:
    comparisons: dict[str, ColumnElement[bool]] = {
        ":": column == time,
        "=": column == time,
        "!=": column != time,
        "<": column < time,
        "<=": column <= time,
        ">": column > time,
        ">=": column >= time,
    }
    return and_(column.is_not(None), comparisons[op])


def _like(column: Any, value: str) -> ColumnElement[bool]:
    if value == "*":
        return true()
    if "*" not in value:
        exact: ColumnElement[bool] = column == value
        return exact
    escaped = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    like: ColumnElement[bool] = column.like(escaped, escape="\\")
    return like


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
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return at <= end


def _time(text: str) -> datetime:
    """Raises ValueError, also for a time that is beyond the calendar in UTC."""
    time = datetime.fromisoformat(text)
    try:
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error
