"""The last line of a terminal, redrawn in place below what is printed."""

import os
from typing import IO

_ERASE = "\r\x1b[J"


def is_live(out: IO[str]) -> bool:
    """Whether `out` is a terminal that can move its cursor."""
    return out.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


class BottomLine:
    """One line that stays below everything else. It needs a terminal that can erase to its end.

    The cursor waits at the start of the line: where a terminal that became narrower has wrapped the line, the rest of
    it is then below the cursor, and is erased with it. Nothing has to be restored, however the program ends."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._shown = ""

    def draw(self, line: str, above: str = "") -> None:
        """Print `above`, which ends with a newline, and show `line`, which must fit into a row, below it."""
        if not above and line == self._shown:
            return
        erase = _ERASE if self._shown else ""
        self._out.write(f"{erase}{above}{line}\r" if line else f"{erase}{above}")
        self._out.flush()
        self._shown = line
