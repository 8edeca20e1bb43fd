"""Settings of a program, each declared once: type, default, meaning, and where an operator gives it.

    @dataclass(frozen=True)
    class Settings:
        lease_s: float = setting(600.0, "how long an agent may be silent", "--lease-seconds", read=number(float, 120))

A flag has the name of its field, unless another is declared. A field that is declared without `setting` is internal: no
operator gives it, and no page has it. A value comes from the flag, else from an environment
variable, else from a TOML file, else it is the default: the flag `--lease-seconds` of a program with the prefix
`TRAINYARD_SERVE_` is also `TRAINYARD_SERVE_LEASE_SECONDS`, where commas separate several values, and the key
`lease-seconds` of the file that `--settings` names. `--help` and the tables of the docs are made of the same
declarations.
"""

import argparse
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from trainyard_protocol.errors import InvalidArgument, quoted

_T = TypeVar("_T")
_KEY = "option"
_FILE = "settings"
_FIELD = "--"
"""A flag with the name of its field."""

_ASIDE = re.compile(r" \(\[[^]]*\]\([^)]*\)\)|; \[[^]]*\]\([^)]*\)")  # links to other pages of the docs
_SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Option:
    """Declaration of a setting, apart from its type and default."""

    meaning: str
    flag: str
    metavar: str | None = None
    read: Callable[[str], Any] | None = None
    default_text: str = ""
    choices: Sequence[str] | None = None

    @property
    def key(self) -> str:
        """Its key in a file."""
        return self.flag.removeprefix("--")

    @property
    def name(self) -> str:
        return self.key.replace("-", "_")


def setting(
    default: _T,
    meaning: str,
    flag: str = _FIELD,
    *,
    metavar: str | None = None,
    read: Callable[[str], Any] | None = None,
    default_text: str = "",
    choices: Sequence[str] | None = None,
    is_secret: bool = False,
) -> _T:
    """A field of a dataclass of settings. `read` makes its value of a text, and raises InvalidArgument with the rest of
    a sentence that begins with the flag; without it the field's type does. `default_text` describes the default."""
    option = Option(meaning, flag, metavar, read, default_text, choices)
    declaration: _T = field(default=default, repr=not is_secret, metadata={_KEY: option})
    return declaration


def required(meaning: str, *, metavar: str | None = None) -> Any:
    """A setting without a default."""
    return field(metadata={_KEY: Option(meaning, _FIELD, metavar)})


def number(
    kind: type[int] | type[float], least: float, most: float = math.inf, rule: str = ""
) -> Callable[[str], float]:
    """A reader of numbers within bounds. `rule` describes them."""
    described = rule or (f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}")

    def read(text: str) -> float:
        value = kind(text)
        if not (math.isfinite(value) and least <= value <= most):
            raise InvalidArgument(f"must be {described}; this is {text}.")
        return value

    return read


@dataclass(frozen=True, slots=True)
class Declared:
    """A field of a dataclass of settings."""

    kind: type
    field: Field[Any]
    option: Option
    type: Any
    is_repeated: bool

    @property
    def default(self) -> str:
        """The default, in words; "" for a switch, and for a setting without one."""
        default = self.field.default
        if self.option.default_text or default is MISSING or default is False:
            return self.option.default_text
        if default in (None, "", ()):
            return "none"
        return f"{default:g}" if isinstance(default, float) else str(default)

    def value(self, text: str) -> Any:
        """The value of one text. Raises InvalidArgument, ValueError."""
        if self.option.choices is not None and text not in self.option.choices:
            raise InvalidArgument(f"is one of {', '.join(self.option.choices)}; this is {quoted(text)}.")
        if self.option.read is not None:
            return self.option.read(text)
        if self.type is not bool:
            return self.type(text)
        if text.lower() not in _SWITCH:
            raise InvalidArgument(f"is true or false; this is {quoted(text)}.")
        return _SWITCH[text.lower()]


def declared(kind: type) -> Iterator[Declared]:
    """The settings of a dataclass, in their order."""
    types = get_type_hints(kind)
    for attribute in fields(kind):
        if (option := attribute.metadata.get(_KEY)) is not None:
            if option.flag == _FIELD:
                option = replace(option, flag=f"--{attribute.name.replace('_', '-')}")
            yield Declared(kind, attribute, option, *_plain(types[attribute.name]))


def _plain(annotation: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several."""
    inside = get_args(annotation)
    if get_origin(annotation) is tuple:
        return inside[0], True
    if get_origin(annotation) in (Union, UnionType):
        return next(type_ for type_ in inside if type_ is not NoneType), False
    return annotation, False


class SettingsReader:
    """Reads the settings of a program: those of several dataclasses, each with the heading of its flags in `--help`."""

    def __init__(self, program: str, description: str, prefix: str, kinds: Mapping[type, str]) -> None:
        self._program, self._description, self._prefix = program, description, prefix
        self._kinds = kinds

    def parser(self) -> argparse.ArgumentParser:
        """The command line. Its values are texts."""
        parser = argparse.ArgumentParser(
            prog=self._program,
            description=self._description,
            epilog=f"Each option may also be given as {self._prefix}OPTION in the environment, or in a file "
            "(--settings).",
        )
        parser.add_argument(
            f"--{_FILE}", metavar="FILE", help='a file with options (TOML), as in lease-seconds = 300 or host = "::1"'
        )
        for kind, title in self._kinds.items():
            group = parser.add_argument_group(*title.split("\n")) if title else parser
            for entry in declared(kind):
                _add(group, entry)
        return parser

    def read(self, arguments: Sequence[str] | None, environment: Mapping[str, str]) -> Mapping[type, dict[str, Any]]:
        """The values that are given, by dataclass and field. Ends the program for a wrong command line. Raises
        InvalidArgument for a value that cannot be used."""
        parser = self.parser()
        flags = vars(parser.parse_args(arguments))
        sources = _Sources(flags, self._prefix, environment)
        given: dict[type, dict[str, Any]] = {kind: {} for kind in self._kinds}
        options = [entry for kind in self._kinds for entry in declared(kind)]
        sources.check_keys({entry.option.key for entry in options})
        for entry in options:
            source, texts = sources.find(entry)
            if texts is None:
                if entry.field.default is MISSING:
                    parser.error(f"the following arguments are required: {entry.option.flag}")
                continue
            try:
                values = tuple(map(entry.value, texts))
            except InvalidArgument as error:
                raise InvalidArgument(f"{source} {error.message}") from error
            except ValueError:
                parser.error(f"argument {source}: invalid value: {', '.join(map(repr, texts))}")
            given[entry.kind][entry.field.name] = values if entry.is_repeated else values[-1]
        return given


class _Sources:
    """The sources of values: flags, the environment and a file."""

    def __init__(self, flags: Mapping[str, Any], prefix: str, environment: Mapping[str, str]) -> None:
        self._flags, self._prefix, self._environment = flags, prefix, environment
        self._path = flags[_FILE] or environment.get(f"{prefix}{_FILE.upper()}", "")
        self._file = _file(Path(self._path)) if self._path else {}

    def check_keys(self, keys: set[str]) -> None:
        if unknown := sorted(set(self._file) - keys):
            raise InvalidArgument(
                f"{self._path}: {quoted(unknown[0])} is not a setting. Settings: {', '.join(sorted(keys))}."
            )

    def find(self, entry: Declared) -> tuple[str, Sequence[str] | None]:
        """The name of the source that has the setting, and its texts there."""
        option = entry.option
        if flag := self._flags[option.name]:
            return option.flag, [str(flag)] if flag is True else flag
        variable = f"{self._prefix}{option.name.upper()}"
        if text := self._environment.get(variable):
            return f"${variable}", text.split(",") if entry.is_repeated else [text]
        value = self._file.get(option.key)
        if value is None:
            return "", None
        source, is_list = f"{self._path}: {option.key}", isinstance(value, list)
        parts = value if is_list and entry.is_repeated else [value]
        if any(isinstance(part, list | dict) for part in parts):
            allowed = "one value, or a list of them" if entry.is_repeated else "one value, and no list"
            raise InvalidArgument(f"{source} must be {allowed}.")
        return source, [str(part) for part in parts]


def _file(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"--{_FILE}: {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidArgument(f"--{_FILE}: {path} is not TOML: {error}.") from error


def _add(group: "argparse._ActionsContainer", entry: Declared) -> None:
    option = entry.option
    meaning = _ASIDE.sub("", option.meaning).replace("`", "").replace("%", "%%")
    if entry.type is bool:
        group.add_argument(option.flag, action="store_true", help=meaning)
        return
    several = "; may be given several times" if entry.is_repeated else ""
    default = f"; default: {entry.default}" if entry.default else ""
    group.add_argument(
        option.flag, action="append", metavar=option.metavar, choices=option.choices, help=meaning + several + default
    )
