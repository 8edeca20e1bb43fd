"""Choice of the screen for a job's log."""

from typing import IO

from trainyard_cli.output.log.log_screen import JsonScreen, PlainScreen, Screen
from trainyard_cli.output.log.terminal_screen import TerminalScreen
from trainyard_cli.output.text.bottom_line import is_live


def screen_for(out: IO[str], err: IO[str], *, as_json: bool = False, raw: bool = False) -> Screen:
    """The live view on a terminal that can move its cursor, with every line if `raw`; elsewhere plain lines."""
    if as_json:
        return JsonScreen(out, err)
    if not is_live(out):
        return PlainScreen(out, err)
    return TerminalScreen(out, raw=raw)
