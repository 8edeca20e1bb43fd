"""Job config file: YAML or JSON, from a path or standard input.

Errors look like a compiler's: `config.yaml:7: workerCount: must be ...`, with the line and a caret.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard_cli.submission.foreign import other_tools
from trainyard_programs import bounded_file
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.config import text as config_text
from trainyard_protocol.job.config.encoding import decode
from trainyard_protocol.job.config.limits import MAX_BYTES
from trainyard_protocol.job.config.text import NotReadable, TextPosition, ValueLocation, position_of, violation_message

_MAX_SHOWN = 400  # characters of a line of the config

STDIN = Path("-")
"""The path that means standard input."""


def _as_it_is(violation: Violation) -> Violation:
    return violation


@dataclass(frozen=True, slots=True)
class ConfigFile:
    path: Path
    data: dict[str, Any]
    lines: Sequence[str]
    root: ValueLocation
    located: Callable[[Violation], Violation] = _as_it_is
    """A violation of the job with the field of this file, where that has other fields than a job."""

    def message(self, position: TextPosition, text: str) -> str:
        """`path:line: text`, the line itself, and a caret under the position."""
        return _located(self.path, self.lines, position, text)


def load(path: Path) -> ConfigFile:
    """Read a config file. Raises InvalidArgument, with the line, unless it is one mapping, and none of another tool."""
    form: config_text.Format | None = "json" if path.suffix == ".json" else "yaml"
    text = _read(path)
    if problem := other_tools.refusal(text):
        raise InvalidArgument(f"{_shown(path)} {problem}.")
    return _parsed(path, text, None if path == STDIN else form)


def parse(text: str, name: str = "config") -> ConfigFile:
    """A config that is a text and no file, and is called `name` in errors. Raises InvalidArgument, as `load` does."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise InvalidArgument(f"{name}: is larger than {MAX_BYTES // 2**20} MiB. Is this a job config?")
    if problem := other_tools.refusal(text):
        raise InvalidArgument(f"{name} {problem}.")
    return _parsed(Path(name), text, None)


def of(data: Mapping[str, Any]) -> ConfigFile:
    """A config that is a mapping and no file. Relative paths in it count from the current directory. Raises
    InvalidArgument unless its values are those of JSON."""
    try:
        text = json.dumps(data, indent=2)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"The config has a value that JSON does not have: {error}.") from error
    return _parsed(Path("config"), text, "json")


def _parsed(path: Path, text: str, form: config_text.Format | None) -> ConfigFile:
    try:
        read = config_text.read(text, form)
    except NotReadable as error:
        if error.span is None:
            raise InvalidArgument(f"{_shown(path)}: {error.text}") from error
        raise InvalidArgument(_located(path, error.lines, error.span.start, error.text)) from error
    return ConfigFile(path, read.data, read.lines, read.root)


def explain(violations: Sequence[Violation], config: ConfigFile | None, origins: Mapping[str, str]) -> str:
    """Describe each violation with its source: a flag or a line of the file.

    `origins` maps a proto path to the flag that set it.
    """
    if config:
        violations = sorted(violations, key=lambda v: position_of(config.root, config.located(v)).start.line)
    return "\n".join(_explained(violation, config, origins) for violation in violations)


def _explained(violation: Violation, config: ConfigFile | None, origins: Mapping[str, str]) -> str:
    flag = next((name for path, name in origins.items() if _covers(path, violation.field)), None)
    if flag is not None:
        return f"{flag}: {violation.description}"
    if config is None:
        return violation_message(violation)
    located = config.located(violation)
    return config.message(position_of(config.root, located).start, violation_message(located))


def _covers(origin: str, path: str) -> bool:
    return path == origin or path.startswith((f"{origin}[", f"{origin}."))


def _located(path: Path, lines: Sequence[str], position: TextPosition, text: str) -> str:
    message = f"{_shown(path)}:{position.line}: {text}"
    if not 1 <= position.line <= len(lines):
        return message
    source = lines[position.line - 1]
    column = position.column - 1
    if len(source) > _MAX_SHOWN:
        begin = max(0, min(column, len(source)) - _MAX_SHOWN // 2)
        source, column = source[begin : begin + _MAX_SHOWN], column - begin
    # Tabs stay tabs, so that the caret lines up with the source.
    indent = "".join(c if c == "\t" else " " for c in source[:column])
    # Control characters must not reach the terminal.
    return f"{message}\n    {_printable(source)}\n    {indent}^"


def _printable(text: str) -> str:
    return "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in text)


def _shown(path: Path) -> str:
    return "<stdin>" if path == STDIN else str(path)


def _read(path: Path) -> str:
    raw = bounded_file.read(None if path == STDIN else path, MAX_BYTES, " Is this a job config?")
    return decode(raw, _shown(path), "" if path == STDIN else str(path))
