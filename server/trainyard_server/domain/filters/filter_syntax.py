"""Syntax of filters, as in Google's list methods: `jobId:rnn* AND (state:FAILED OR labels.team=vision) AND NOT a=b`.

Pure. NOT or `-` binds tightest, then OR, then AND, which also joins terms side by side: `a OR b AND c` is
`(a OR b) AND c` (https://google.aip.dev/160). Values may be in quotes, double or single; `state:(FAILED OR CANCELLED)`
is any of the values. The fields, and what they take, are the caller's, which makes each term.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trainyard_protocol.errors import InvalidArgument, Violation

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedToken

_GRAMMAR = r"""
?all_of: any_of (_AND? any_of)*
?any_of: one (_OR one)*
?one: (_MINUS | _NOT) one -> negated
    | _OPEN all_of _CLOSE
    | NAME OP (VALUE | QUOTED) -> term
    | NAME OP _OPEN _values _CLOSE -> term
_values: (VALUE | QUOTED) | _values _separator (VALUE | QUOTED)

_AND: "AND"
_OR: "OR"
_NOT: "NOT"
_OPEN: "("
_CLOSE: ")"
_MINUS.2: /-(?=[A-Za-z("])/
OP: /<=|>=|!=|=~|!~|[:=<>~]/
NAME: /(?!'|(AND|OR)(?![^\s()"=:<>!~]))[^\s()"=:<>!~]+((?<=\.)\s*"([^"\\]|\\.)*"(\s*\.[^\s()"=:<>!~]*)?)*/s
VALUE: /-?(?!')[^\s()"=:<>!~]+(:[^\s()"=:<>!~]*)*/
QUOTED: /-?("([^"\\]|\\.)*"|'([^'\\]|\\.)*')/s
%ignore /\s+/
"""
_OF_LISTS = "_separator: _OR?"
_OF_LOGS = r"""
_separator: _OR
%extend one: (NAME | TEXT) -> text
    | TEXT OP (VALUE | QUOTED) -> term
    | TEXT OP _OPEN _values _CLOSE -> term
    | CALL _OPEN [(ARGUMENT | QUOTED) (_COMMA (ARGUMENT | QUOTED))*] _CLOSE -> call
TEXT: /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/s
CALL.2: /(?!')[^\s()"=:<>!~]+(?=\()|(log_id|search)(?=\s*\()/i
_COMMA: ","
ARGUMENT: /[^\s()"=:<>!~,]+/
COMMENT.3: /--[^\n]*/
%ignore COMMENT
"""
"""What the filters of logs have beside: texts alone, calls and comments."""

_PART = re.compile(r'(?<=\.)\s*"((?:[^"\\]|\\.)*)"\s*', re.S)
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
    make_search: MakeSearch | None = None,
    functions: Mapping[str, MakeCall] = MappingProxyType({}),
) -> Expression | None:
    """None for an empty filter. `operators` are those of messages; `make_search`: texts may stand alone, `--` begins a
    comment, and a backslash in quotes stays before all but quotes and itself, as in Cloud Logging's, so that patterns
    may have one or two; else values in parentheses may stand side by side, as in gcloud's; `functions`: those that may
    be called there. Raises InvalidArgument that shows the column where it went wrong."""
    if len(text) > _MAX_LENGTH:
        message = f"may have {_MAX_LENGTH} characters; this has {len(text)}."
        raise InvalidArgument(Violation("filter", message))
    try:
        tree = _tree(text, operators, _parser(of_logs=make_search is not None))
        return None if tree is None else _Maker(text, make_term, operators, make_search, functions).expression(tree)
    except FilterError as error:
        shown = f"{text}\n{' ' * error.column}^"
        message = f"column {error.column + 1}: {error.message}\n{shown}"
        raise InvalidArgument(Violation("filter", message)) from error


@cache
def _parser(*, of_logs: bool) -> "Lark":
    from lark import Lark  # takes 60 ms

    grammar = _GRAMMAR + (_OF_LOGS if of_logs else _OF_LISTS)
    return Lark(grammar, start="all_of", parser="lalr", maybe_placeholders=False)


def _tree(text: str, operators: str, parser: "Lark") -> Any:
    """The tree of a filter; None without a term. Raises FilterError."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    parsing: Any = parser.parse_interactive(text)
    terms, last = 0, None
    try:
        for token in parsing.iter_parse():
            is_first_value = last is not None and last.type == "OP"
            terms += not is_first_value and token.type not in ("_AND", "_OR", "_CLOSE", "OP")
            if terms > _MAX_TERMS:
                message = f"a filter may have at most {_MAX_TERMS} terms; NOT and parentheses count as terms."
                raise FilterError(token.start_pos, message)
            last = token
        return parsing.feed_eof(last) if last else None
    except UnexpectedCharacters as error:
        column = error.pos_in_stream or 0
        raise FilterError(column, f"{text[column]!r} is not understood.") from None
    except UnexpectedToken as error:
        raise _problem(text, error, last, operators) from None


def _problem(text: str, error: "UnexpectedToken", last: object, operators: str) -> FilterError:
    token = repr(str(error.token))
    if not error.expected or "$END" in error.expected:
        return FilterError(error.token.start_pos, f"{token} does not belong here.")
    sentences = {
        "ARGUMENT": ("a value", "functions have values with commas between them."),
        "_COMMA": ("a comma", "functions have values with commas between them."),
        "VALUE": ("a value", f"a value is expected; this is {token}."),
        "OP": (f"one of {operators}", f"one of {operators} is expected after {last}."),
        "NAME": ("a condition such as state:FAILED", f"a field's name is expected; this is {token}."),
        "_CLOSE": ("", "values in parentheses are separated by OR."),
    }
    wanted, wrong = next(sentence for kind, sentence in sentences.items() if kind in error.expected)
    if error.token.type == "$END":
        wanted = "a closing parenthesis" if "_CLOSE" in error.expected else wanted
        return FilterError(len(text.rstrip()), f"it ends where {wanted} is expected.")
    return FilterError(error.token.start_pos, wrong)


@dataclass(frozen=True)
class _Maker:
    """Makes the expression of a tree."""

    text: str
    make_term: MakeTerm
    operators: str
    make_search: MakeSearch | None
    functions: Mapping[str, MakeCall]

    def expression(self, tree: Any) -> Expression:
        if tree.data == "negated":
            return Not(self.expression(tree.children[0]))
        if tree.data in ("all_of", "any_of"):
            parts = tuple(self.expression(part) for part in tree.children)
            return And(parts) if tree.data == "all_of" else Or(parts)
        name, *others = map(self._token, tree.children)
        if tree.data == "text" and self.make_search is not None:
            if '"' in tree.children[0] and name.kind == "word":
                raise FilterError(name.column, f"one of {self.operators} is expected after {name.text}.")
            return self.make_search(name)
        return self._call(name, others) if tree.data == "call" else self._any_value(name, *others)

    def _call(self, name: FilterToken, arguments: list[FilterToken]) -> Term:
        for key, make in self.functions.items():
            if key.casefold() == name.text.casefold():
                return make(name, arguments)
        raise FilterError(name.column, f"{name.text!r} is not a function; allowed: {', '.join(self.functions)}.")

    def _any_value(self, name: FilterToken, op: FilterToken, *values: FilterToken) -> Expression:
        if op.text not in (":", "=") and self.text[op.column + len(op.text) :].lstrip().startswith("("):
            raise FilterError(self.text.index("(", op.column), f"several values follow : or =, and not {op.text}.")
        for value in values:
            end = value.column + len(value.text)
            if self.make_search is not None and value.kind == "word" and self.text[end : end + 1] == "(":
                message = f"{value.text!r} is not a function of values; put a text with ( into quotes."
                raise FilterError(value.column, message)
        if and_word := next((value for value in values[1:] if (value.kind, value.text) == ("word", "AND")), None):
            raise FilterError(and_word.column, "values in parentheses are separated by OR.")
        terms = tuple(self.make_term(name, op, value) for value in values)
        return terms[0] if len(terms) == 1 else Or(terms)

    def _token(self, token: "Token") -> FilterToken:
        escaped = _ESCAPED if self.make_search is None else _ESCAPED_QUOTE
        kind, text = "word", str(token)
        if token.type == "NAME":
            text = _PART.sub(lambda part: escaped.sub(r"\1", part[1]), text)
        elif token.type in ("QUOTED", "TEXT"):
            minus = "-" if text.startswith("-") else ""
            kind, text = "word" if minus else "quoted", minus + escaped.sub(r"\1", text.removeprefix("-")[1:-1])
        return FilterToken(kind, text, token.start_pos or 0)
