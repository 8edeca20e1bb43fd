"""File of variables, as dotenv and Docker Compose read one: `.env`.

A line is NAME=VALUE, or NAME for the value that the variable has here; `export` before it and spaces around the sign
change nothing, `#` begins a comment. In single quotes a value is as it is written, in double quotes a backslash escapes
n, r, t, quotes, $ and itself; both may go over several lines. $NAME is not expanded, and no command is run.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard_programs import bounded_file
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.encoding import decode

_MAX_BYTES = 2**20
_BETWEEN = re.compile(r"(?:[ \t\f\v]*(?:#[^\n]*)?\n)*[ \t\f\v]*(?:#[^\n]*\Z)?")
"""Empty lines and comments before the next variable."""

_NAME = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*(=|(?=#|\n|\Z))")
_QUOTED = re.compile(r"""[ \t]*(?:'([^']*)'|"((?:\\.|[^"\\])*)")""", re.S)
_OPEN_QUOTE = re.compile(r"[ \t]*['\"]")
_LINE = re.compile(r"[^\n]*")
_END = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_COMMENT = re.compile(r"\s+#.*")
_ESCAPE = re.compile(r"""\\([nrt"\\$])""")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def read(path: Path, environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables of a file; of a name that is there twice the last value. Raises InvalidArgument, with the line."""
    raw = bounded_file.read(path, _MAX_BYTES, " Is this a file of variables?")
    text = decode(raw, str(path), str(path)).replace("\r\n", "\n")
    variables: dict[str, str] = {}
    for line, name, value in _parsed(text, str(path)):
        if value is None and name not in environment:
            raise InvalidArgument(f"{path}:{line}: {name} is not set here; write {name}=VALUE.")
        variables[name] = environment[name] if value is None else value
    return tuple(variables.items())


def _parsed(text: str, path: str) -> Iterator[tuple[int, str, str | None]]:
    """Line, name and value of each variable; None for the value that it has here."""
    at = _end_of(_BETWEEN, text, 0)
    while at < len(text):
        line = text.count("\n", 0, at) + 1
        start = _NAME.match(text, at)
        if start is None:
            raise InvalidArgument(f"{path}:{line}: must look like NAME=VALUE; commands of a shell are not run.")
        name, at, value = start[1], start.end(), None
        if start[2]:
            value, at = _value(text, at, f"{path}:{line}: {name}")
        after = _END.match(text, at)
        if after is None:
            raise InvalidArgument(f"{path}:{line}: {name} has text behind its closing quote.")
        yield line, name, value
        at = _end_of(_BETWEEN, text, after.end())


def _value(text: str, at: int, where: str) -> tuple[str, int]:
    """The value that begins at a position, and its end."""
    if quoted := _QUOTED.match(text, at):
        literal, escaped = quoted.groups()
        value = literal if literal is not None else _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), escaped)
        return value, quoted.end()
    if _OPEN_QUOTE.match(text, at):
        raise InvalidArgument(f"{where} has an opening quote that is not closed.")
    end = _end_of(_LINE, text, at)
    return _COMMENT.sub("", text[at:end]).strip(), end


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
