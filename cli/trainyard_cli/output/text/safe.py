"""The one way for a command's text to a terminal: what jobs, users and servers wrote cannot control the terminal.

The live views, which draw with colours and cursor movements of their own, remove those of jobs by `without_control`.
"""

import os
import re

import click

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, cursor, erasing
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)"  # titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NO_COLOURS = re.compile(r"\x1b(?:\[(?![0-9;]*m)[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[^\[\]])")
_BROKEN_ESCAPE = re.compile(r"\x1b(?!\[[0-9;]*m)")
_CONTROLS_BUT_ESC = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f\x80-\x9f]")
_FIELD = re.compile(r"^Field: (\S+) Error: ", re.M)
_BEYOND_JSON = re.compile(r"[\x7f-\x9f]")


def echo(text: str, *, nl: bool = True, err: bool = False, colours: bool = False) -> None:
    """Print text without escape sequences; with `colours` those of colours stay, unless NO_COLOR is set."""
    if colours and not os.environ.get("NO_COLOR"):
        click.echo("\n".join(map(without_control, text.split("\n"))), nl=nl, err=err)
    else:
        click.echo(printable(text), nl=nl, err=err)


def printable(text: str) -> str:
    """Remove escape sequences and control characters other than tabs and line ends. Pure; linear time."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


def printable_json(text: str) -> str:
    """Escape the control characters that JSON may contain as they are: no value changes. Pure."""
    return _BEYOND_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def without_control(text: str) -> str:
    """Remove control characters and escape sequences from a line, except for colours."""
    return _BROKEN_ESCAPE.sub("", _CONTROLS_BUT_ESC.sub("", _NO_COLOURS.sub("", text)))


def without_field(message: str) -> str:
    """A message of the API without `Field: ... Error:`; the field stays unless it is the resource's name."""
    return _FIELD.sub(lambda match: "" if match[1] == "name" else f"{match[1]}: ", message)
