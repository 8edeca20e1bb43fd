"""The job's config file: YAML or JSON, from a path or from standard input.

Whatever is wrong with a value is said as a compiler says it: `config.yaml:7: workerCount: must be ...`, with
the line and a caret.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainyard_protocol import config_text
from trainyard_protocol.config_text import Mark, NotReadable, Place, place_of, sentence
from trainyard_protocol.errors import InvalidArgument, Violation

MAX_BYTES = 4 * 2**20

STDIN = Path("-")
"""The path that means standard input."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    path: Path
    data: dict[str, Any]
    lines: Sequence[str]
    root: Place

    def say(self, mark: Mark, text: str) -> str:
        """`path:line: text`, the line itself, and a caret under the place."""
        return _located(self.path, self.lines, mark, text)


def load(path: Path) -> ConfigFile:
    """Read a config file. Raises InvalidArgument, saying where, for whatever is not one mapping of keys."""
    text = _read(path)
    form: config_text.Format | None = "json" if path.suffix == ".json" else "yaml"
    try:
        read = config_text.read(text, None if path == STDIN else form)
    except NotReadable as error:
        if error.span is None:
            raise InvalidArgument(f"{_shown(path)}: {error.text}") from error
        raise InvalidArgument(_located(path, error.lines, error.span.start, error.text)) from error
    return ConfigFile(path, read.data, read.lines, read.root)


def explain(violations: Sequence[Violation], config: ConfigFile | None, origins: Mapping[str, str]) -> str:
    """Every violation in the user's own terms: the flag that said it, or the line of the file.

    `origins` maps a proto path to the flag that gave its value.
    """
    if config:
        violations = sorted(violations, key=lambda v: place_of(config.root, v).start.line)
    return "\n".join(_explained(violation, config, origins) for violation in violations)


def _explained(violation: Violation, config: ConfigFile | None, origins: Mapping[str, str]) -> str:
    said_by = next((flag for path, flag in origins.items() if _covers(path, violation.field)), None)
    if said_by is not None:
        return f"{said_by}: {violation.description}"
    if config is None:
        return sentence(violation)
    return config.say(place_of(config.root, violation).start, sentence(violation))


def _covers(origin: str, path: str) -> bool:
    return path == origin or path.startswith((f"{origin}[", f"{origin}."))


def _located(path: Path, lines: Sequence[str], mark: Mark, text: str) -> str:
    said = f"{_shown(path)}:{mark.line}: {text}"
    if not 1 <= mark.line <= len(lines):
        return said
    source = lines[mark.line - 1]
    # Tabs stay tabs under the source line, so that the caret stands where the eye expects it.
    indent = "".join(c if c == "\t" else " " for c in source[: mark.column - 1])
    # What the terminal would obey is not shown as it is.
    shown = "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in source)
    return f"{said}\n    {shown}\n    {indent}^"


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
        raise InvalidArgument(f"{_shown(path)}: is larger than {MAX_BYTES // 2**20} MiB; is it the config?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InvalidArgument(f"{_shown(path)}:{line}: is not UTF-8 text.") from error


def _limited(file: IO[bytes]) -> bytes:
    return file.read(MAX_BYTES + 1)
