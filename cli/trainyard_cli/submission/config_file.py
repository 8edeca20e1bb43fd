"""Job config file: YAML or JSON, from a path or standard input.

Errors look like a compiler's: `config.yaml:7: workerCount: must be ...`, with the line and a caret.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainyard_protocol.config import text as config_text
from trainyard_protocol.config.text import (
    NotReadable,
    TextPosition,
    ValueLocation,
    position_of,
    violation_message,
)
from trainyard_protocol.errors import InvalidArgument, Violation

MAX_BYTES = 4 * 2**20

STDIN = Path("-")
"""The path that means standard input."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    path: Path
    data: dict[str, Any]
    lines: Sequence[str]
    root: ValueLocation

    def message(self, position: TextPosition, text: str) -> str:
        """`path:line: text`, the line itself, and a caret under the position."""
        return _located(self.path, self.lines, position, text)


def load(path: Path) -> ConfigFile:
    """Read a config file. Raises InvalidArgument, with the line, unless it is one mapping."""
    form: config_text.Format | None = "json" if path.suffix == ".json" else "yaml"
    return _parsed(path, _read(path), None if path == STDIN else form)


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
        violations = sorted(violations, key=lambda v: position_of(config.root, v).start.line)
    return "\n".join(_explained(violation, config, origins) for violation in violations)


def _explained(violation: Violation, config: ConfigFile | None, origins: Mapping[str, str]) -> str:
    flag = next((name for path, name in origins.items() if _covers(path, violation.field)), None)
    if flag is not None:
        return f"{flag}: {violation.description}"
    if config is None:
        return violation_message(violation)
    return config.message(position_of(config.root, violation).start, violation_message(violation))


def _covers(origin: str, path: str) -> bool:
    return path == origin or path.startswith((f"{origin}[", f"{origin}."))


def _located(path: Path, lines: Sequence[str], position: TextPosition, text: str) -> str:
    message = f"{_shown(path)}:{position.line}: {text}"
    if not 1 <= position.line <= len(lines):
        return message
    source = lines[position.line - 1]
    # Tabs stay tabs, so that the caret lines up with the source.
    indent = "".join(c if c == "\t" else " " for c in source[: position.column - 1])
    # Control characters must not reach the terminal.
    shown = "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in source)
    return f"{message}\n    {shown}\n    {indent}^"


def _shown(path: Path) -> str:
    return "<stdin>" if path == STDIN else str(path)


def _read(path: Path) -> str:
    try:
        if path == STDIN:
            raw = _limited(sys.stdin.buffer)
        else:
            with path.open("rb") as file:
                raw = _limited(file)
    except OSError as error:
        raise InvalidArgument(f"{_shown(path)}: cannot be read: {error.strerror}.") from error
    if len(raw) > MAX_BYTES:
        raise InvalidArgument(
            f"{_shown(path)}: is larger than {MAX_BYTES // 2**20} MiB. Is this a job config?"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InvalidArgument(f"{_shown(path)}:{line}: is not UTF-8 text.") from error


def _limited(file: IO[bytes]) -> bytes:
    return file.read(MAX_BYTES + 1)
