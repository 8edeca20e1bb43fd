"""Scalar field types of the v1 API: lenient in parsing, strict in output.

Real clients send int64 as numbers or as strings, enums in lower case and `"True"` for a boolean; answers
carry int64 as a JSON string, durations as `"3600s"`, times as RFC 3339 with `Z` (proto3's JSON mapping).
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, PlainSerializer
from pydantic_core import PydanticCustomError

from trainyard_protocol.errors import nearest, shown

_E = TypeVar("_E", bound=StrEnum)
_INT64 = 2**63
_MAX_SHOWN = 200  # characters of a string that a message repeats
_MAX_TEXT = 4096
"""Characters of a string: those of a path on Linux, the longest that a field holds."""
MAX_ARGUMENT = 2**17 - 1
"""Bytes of one argument of a program on Linux (MAX_ARG_STRLEN without the NUL), and of one variable as NAME=VALUE."""
_DURATION = re.compile(r"(\d{1,12})(\.\d{1,9})?s")


def validation_error(message: str) -> PydanticCustomError:
    """A validation error with this message for the user."""
    return PydanticCustomError("trainyard", "{message}", {"message": message})


def kind_of(value: object) -> str:
    """The kind of a value in terms of JSON and YAML."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {shown(str(value))}"
        case str():
            return f"the string {value!r}" if len(value) <= _MAX_SHOWN else f"a string of {len(value)} characters"
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """`Did you mean "x"?`, or "" without a close match."""
    near = nearest(word, allowed) if len(word) <= _MAX_SHOWN else ""
    return f'Did you mean "{near}"?' if near else ""


def _text(value: object) -> str:
    if isinstance(value, str):
        if len(value) > _MAX_TEXT:
            raise validation_error(f"must be at most {_MAX_TEXT} characters long; this is {kind_of(value)}.")
        return _writable(value)
    if isinstance(value, float):
        raise validation_error(
            f"must be a string; this is {kind_of(value)} (YAML reads 2.10 as 2.1): put it in quotes."
        )
    if isinstance(value, int) and not isinstance(value, bool):
        raise validation_error(f"must be a string; this is {kind_of(value)}: put it in quotes.")
    raise validation_error(f"must be a string; this is {kind_of(value)}.")


def _writable(value: str) -> str:
    """Raises for NUL, which cannot be passed to a process, and for lone surrogates, which cannot be encoded."""
    if "\0" in value:
        raise validation_error("must not hold a NUL character.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise validation_error("must be text; it holds half of a surrogate pair (bytes that are not UTF-8?).") from None
    return value


def too_long(size: int, what: str) -> str:
    """The refusal of an argument or a variable that the kernel does not pass to a program."""
    return (
        f"is too long: {size:,} bytes; {what} can have {MAX_ARGUMENT:,} on Linux. Write it to a file, and give the "
        "program the file's path."
    )


def _argument(value: object) -> str:
    if isinstance(value, str):
        written = _writable(value)
        if (size := len(written.encode())) > MAX_ARGUMENT:
            raise validation_error(too_long(size, "an argument of a program"))
        return written
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    hint = ": put it in quotes." if isinstance(value, bool) else "."
    raise validation_error(f"must be a string; this is {kind_of(value)}{hint}")


def _integer(bound: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise validation_error(f"must be a whole number; this is {kind_of(value)}.")
        try:
            number = int(value)
        except (ValueError, OverflowError):
            raise validation_error(f"must be a whole number; this is {kind_of(value)}.") from None
        if isinstance(value, float) and number != value:
            raise validation_error(f"must be a whole number; this is {kind_of(value)}.")
        if not -bound <= number < bound:
            raise validation_error(f"must be below {bound}; this is {shown(str(number))}.")
        return number

    return parse


def _not_negative(value: int) -> int:
    if value < 0:
        raise validation_error(f"must be 0 or more; this is {value}.")
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise validation_error(f"must be true or false; this is {kind_of(value)}.")


def _number(value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise validation_error(f"must be a number; this is {kind_of(value)}.")


def _duration(value: object) -> str:
    written = f"{value}s" if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(written, str) and _DURATION.fullmatch(written):
        return written
    raise validation_error(f"must be a duration in seconds such as '3600s'; this is {kind_of(value)}.")


Text = Annotated[str, BeforeValidator(_text)]
"""A string. YAML numbers are refused, since the parser has turned `2.10` into `2.1`."""

Argument = Annotated[str, BeforeValidator(_argument)]
"""One argument of a command line. Numbers are accepted, booleans are not (`true` or `True`?)."""

Int64 = Annotated[int, BeforeValidator(_integer(_INT64)), PlainSerializer(str, when_used="json")]
Count = Annotated[
    int, BeforeValidator(_integer(_INT64)), AfterValidator(_not_negative), PlainSerializer(str, when_used="json")
]
"""An int64 that is not negative; a JSON string in answers."""

Int32 = Annotated[int, BeforeValidator(_integer(2**31))]
Double = Annotated[float, BeforeValidator(_number)]
Boolean = Annotated[bool, BeforeValidator(_boolean)]

Duration = Annotated[str, BeforeValidator(_duration)]
"""Seconds with up to nine decimals and an `s`, unchanged; `seconds()` parses it."""


def enum_of(kind: type[_E]) -> Any:
    """An enum, parsed in any case and with dashes, and returned in the spelling of the API."""

    def parse(value: object) -> object:
        if isinstance(value, str):
            name = value.upper().replace("-", "_")
            if name in kind.__members__:
                return kind[name]
        allowed = ", ".join(kind.__members__)
        hint = did_you_mean(value.upper(), kind.__members__) if isinstance(value, str) else ""
        raise validation_error(f"must be one of {allowed}; this is {kind_of(value)}." + (f" {hint}" if hint else ""))

    return BeforeValidator(parse)


def seconds(duration: str) -> float:
    """`"3.5s"` -> 3.5. Raises ValueError for text that is not a `Duration`."""
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise ValueError(f"not a duration: {duration!r}")
    return float(match[1] + (match[2] or ""))


def rfc3339(time: datetime) -> str:
    """UTC with `Z`; whole seconds without decimals, as in the real service."""
    time = time.astimezone(UTC)
    return time.isoformat(timespec="microseconds" if time.microsecond else "seconds").replace("+00:00", "Z")


def sized(count: float) -> str:
    """Bytes in decimal units: `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
