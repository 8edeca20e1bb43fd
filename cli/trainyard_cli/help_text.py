"""Help and version, printed without loading the command tree: the files below `help/` are made from it beforehand
(scripts/help_pages.py). Imports nothing that an interpreter has not loaded anyway."""

import os
import sys
from collections.abc import Sequence

from trainyard_protocol import __version__

_HELP = (["--help"], ["-h"], ["help"])
_WITHOUT_TERMINAL = 80
_WIDEST = 110
"""`max_content_width` of the command tree."""


def of(arguments: Sequence[str]) -> str:
    """The answer to these arguments; "" where the command tree has to give it: for anything but the first page of help
    on a terminal of a usual width, and the version."""
    if arguments == ["--version"]:
        return f"trainyard {__version__}\n"
    columns = min(_columns(), _WIDEST)
    if arguments not in _HELP or columns not in (_WITHOUT_TERMINAL, _WIDEST):
        return ""
    try:
        with open(f"{os.path.dirname(__file__)}/help/{columns}.txt", encoding="utf-8") as file:  # noqa: PTH120, PTH123 - loads no pathlib
            return file.read()
    except OSError:
        return ""


def _columns() -> int:
    """Width of the terminal, as shutil.get_terminal_size has it."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _WITHOUT_TERMINAL  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return _WITHOUT_TERMINAL
