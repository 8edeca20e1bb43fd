"""Syntax of filters, as in Google's list methods: `jobId:rnn* AND (state:FAILED OR labels.team=vision) AND NOT a=b`.

Pure. NOT or `-` binds tightest, then OR, then AND, which also joins terms side by side: `a OR b AND c` is
`(a OR b) AND c` (https://google.aip.dev/160). Values may be in quotes, double or single; `state:(FAILED OR CANCELLED)`
is any of the values. The fields, and what they take, are the caller's, which makes each term.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trainyard_protocol.errors import InvalidArgument, Violation

_TOKEN = re.compile(
    r"""\s*(?:(?P<open>\()|(?P<close>\))|(?P<op><=|>=|!=|=~|!~|[:=<>~])|(?P<minus>-(?=[A-Za-z("]))
    |"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<word>(?!')[^\s()"=:<>!~]+))""",
    re.X,
)
_COMMENT = re.compile(r"\s*--[^\n]*")
_ESCAPED = re.compile(r"\\(.)", re.S)
_ESCAPED_QUOTE = re.compile(r"\\([\"'\\])")
_MAX_TERMS = 200
_MAX_LENGTH = 4000  # characters


@dataclass(frozen=True, slots=True)
class Term:
    """`field op value`."""

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


@dataclass(frozen=True, slots=True)
class FilterToken:
    kind: str
    text: str
    column: int


class FilterError(Exception):
    """A filter that is wrong at a column, counted from 0."""

    def __init__(self, column: int, message: str) -> None:
        super().__init__(message)
        self.column, self.message = column, message.strip()


MakeSearch = Callable[[FilterToken], Term]
"""Makes the term of a text that stands alone."""

MakeTerm = Callable[[FilterToken, FilterToken, FilterToken], Term]
"""Makes the term of a field, an operator and a value. Raises FilterError."""

MakeCall = Callable[[FilterToken, list[FilterToken]], Term]
"""Makes the term of a function's name and its arguments. Raises FilterError."""


def parse(
    text: str,
    make_term: MakeTerm,
    operators: str,
    *,
    spaced_values: bool = False,
    make_search: MakeSearch | None = None,
    functions: Mapping[str, MakeCall] = MappingProxyType({}),
) -> Expression | None:
    """None for an empty filter. `operators` are those of messages; `spaced_values`: values in parentheses may stand
    side by side, as in gcloud's filters; `make_search`: texts may stand alone and `--` begins a comment, as in Cloud
    Logging's, and a backslash in quotes stays before all but quotes and itself, so that patterns may have one or two;
    `functions`: those that may be called there. Raises InvalidArgument that shows the column where it went wrong."""
    if len(text) > _MAX_LENGTH:
        message = f"may have {_MAX_LENGTH} characters; this has {len(text)}."
        raise InvalidArgument(Violation("filter", message))
    try:
        parser = _Parser(text, make_term, operators, spaced_values, make_search, functions)
        if parser.is_empty:
            return None
        expression = parser.all_of()
        parser.expect_end()
    except FilterError as error:
        shown = f"{text}\n{' ' * error.column}^"
        message = f"column {error.column + 1}: {error.message}\n{shown}"
        raise InvalidArgument(Violation("filter", message)) from error
    return expression


class _Parser:
    """Recursive descent over the tokens of one filter."""

    def __init__(
        self,
        text: str,
        make_term: MakeTerm,
        operators: str,
        spaced_values: bool,
        make_search: MakeSearch | None,
        functions: Mapping[str, MakeCall],
    ) -> None:
        self._text, self._make_term, self._operators = text, make_term, operators
        self._spaced_values, self._make_search, self._functions = spaced_values, make_search, functions
        self._tokens = list(self._scan())
        self._at = 0
        self._terms = 0

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def all_of(self) -> Expression:
        parts = [self._any_of()]
        while (token := self._peek()) and token.kind != "close":
            self._skip_word("AND")
            parts.append(self._any_of())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def expect_end(self) -> None:
        if token := self._peek():
            raise FilterError(token.column, f"{token.text!r} does not belong here.")

    def _any_of(self) -> Expression:
        parts = [self._one()]
        while self._skip_word("OR"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _one(self) -> Expression:
        token = self._next("a condition such as state:FAILED")
        self._count(token)
        if token.kind == "minus" or (token.kind == "word" and token.text == "NOT"):
            return Not(self._one())
        if token.kind == "open":
            inside = self.all_of()
            closing = self._next("a closing parenthesis")
            if closing.kind != "close":
                raise FilterError(closing.column, "a closing parenthesis is missing.")
            return inside
        is_text = token.kind == "quoted" and self._make_search is not None
        if (token.kind != "word" and not is_text) or token.text in ("AND", "OR"):
            raise FilterError(token.column, f"a field's name is expected; this is {token.text!r}.")
        if self._make_search is not None:
            if self._is_call(token):
                return self._call(token)
            following = self._peek()
            is_name = token.text.endswith(".") and following is not None and following.kind == "quoted"
            if not is_name and (following is None or following.kind != "op"):
                return self._make_search(token)
        return self._term(self._with_quoted_parts(token))

    def _is_call(self, name: FilterToken) -> bool:
        following = self._peek()
        if following is None or following.kind != "open" or name.kind != "word":
            return False
        return following.column == name.column + len(name.text) or self._function(name) is not None

    def _function(self, name: FilterToken) -> MakeCall | None:
        return next((make for key, make in self._functions.items() if key.casefold() == name.text.casefold()), None)

    def _call(self, name: FilterToken) -> Expression:
        """`name("a", b)`."""
        make_call = self._function(name)
        if make_call is None:
            functions = ", ".join(self._functions)
            raise FilterError(name.column, f"{name.text!r} is not a function; allowed: {functions}.")
        self._next("")
        arguments: list[FilterToken] = []
        is_open = True  # for an argument
        while (token := self._next("a closing parenthesis")).kind != "close":
            is_word = token.kind == "word"
            for text in re.findall(r",|[^,]+", token.text) if is_word else [token.text]:
                is_comma = is_word and text == ","
                if token.kind not in ("word", "quoted") or is_open == is_comma:
                    raise FilterError(token.column, f"{name.text} has values with commas between them.")
                if not is_comma:
                    arguments.append(FilterToken(token.kind, text, token.column))
                is_open = is_comma
        return make_call(name, arguments)

    def _with_quoted_parts(self, name: FilterToken) -> FilterToken:
        """A field's name, whose parts may be in quotes: `labels."a/b"`, `metrics."a b".best`."""
        while name.text.endswith(".") and (part := self._peek()) and part.kind == "quoted":
            text = name.text + self._next("").text
            following = self._peek()
            if following is not None and following.kind == "word" and following.text.startswith("."):
                text += self._next("").text
            name = FilterToken("word", text, name.column)
        return name

    def _count(self, token: FilterToken) -> None:
        self._terms += 1
        if self._terms > _MAX_TERMS:
            raise FilterError(
                token.column, f"a filter may have at most {_MAX_TERMS} terms; NOT and parentheses count as terms."
            )

    def _term(self, name: FilterToken) -> Expression:
        op = self._next(f"one of {self._operators}")
        if op.kind != "op":
            raise FilterError(op.column, f"one of {self._operators} is expected after {name.text}.")
        opening = self._peek()
        if opening is None or opening.kind != "open":
            return self._make_term(name, op, self._value())
        if op.text not in (":", "="):
            raise FilterError(opening.column, f"several values follow : or =, and not {op.text}.")
        self._next("")
        return self._any_value(name, op)

    def _any_value(self, name: FilterToken, op: FilterToken) -> Expression:
        """`a OR b)`: values, and the parenthesis that ends them."""
        parts: list[Expression] = []
        while True:
            value = self._value()
            self._count(value)
            parts.append(self._make_term(name, op, value))
            token = self._next("a closing parenthesis")
            if token.kind == "close":
                return parts[0] if len(parts) == 1 else Or(tuple(parts))
            word = token.text if token.kind == "word" else ""
            if word == "AND" or (word != "OR" and not self._spaced_values):
                raise FilterError(token.column, "values in parentheses are separated by OR.")
            if word != "OR":
                self._at -= 1  # it is the next value

    def _value(self) -> FilterToken:
        """One value. A time has colons of its own, so words and colons that touch belong together."""
        first = self._next("a value")
        if first.kind == "minus":
            number = self._value()
            return FilterToken("word", f"-{number.text}", first.column)
        if first.kind not in ("word", "quoted"):
            raise FilterError(first.column, f"a value is expected; this is {first.text!r}.")
        text, end = first.text, first.column + len(first.text)
        while first.kind == "word" and (token := self._peek()) and token.column == end and token.text == ":":
            colon = self._next("")
            after = self._peek()
            text += colon.text
            end += 1
            if after and after.kind == "word" and after.column == end:
                text += self._next("").text
                end += len(after.text)
        opening = self._peek() if self._make_search is not None and first.kind == "word" else None
        if opening is not None and opening.kind == "open" and opening.column == end:
            raise FilterError(first.column, f"{text!r} is not a function of values; put a text with ( into quotes.")
        return FilterToken(first.kind, text, first.column)

    def _scan(self) -> list[FilterToken]:
        tokens, at = list[FilterToken](), 0
        escaped = _ESCAPED if self._make_search is None else _ESCAPED_QUOTE
        end = len(self._text.rstrip())
        while at < end:
            if self._make_search is not None and (comment := _COMMENT.match(self._text, at)):
                at = comment.end()
                continue
            match = _TOKEN.match(self._text, at)
            if match is None:
                column = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                raise FilterError(column, f"{self._text[column]!r} is not understood.")
            kind = match.lastgroup or ""
            text = match[kind]
            column = match.start(kind)
            if kind in ("double", "single"):
                kind, text = "quoted", escaped.sub(r"\1", text)
            tokens.append(FilterToken(kind, text, column))
            at = match.end()
        return tokens

    def _peek(self) -> FilterToken | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, expected: str) -> FilterToken:
        token = self._peek()
        if token is None:
            raise FilterError(len(self._text.rstrip()), f"it ends where {expected} is expected.")
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
