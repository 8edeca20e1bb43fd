"""Current step of a command that needs a few seconds, on a terminal: what it does, and for how long."""

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import IO, Self

import click

from trainyard_cli.output.bottom_line import BottomLine, is_live

_REFRESH_S = 0.2


class Activity:
    """One line below the messages of a command, while it is entered. Where nothing can be drawn in place, there are
    messages alone, as without it."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._bottom = BottomLine(self._out) if is_live(self._out) else None
        self._step, self._since = "", 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="activity", daemon=True)

    def __enter__(self) -> Self:
        if self._bottom is not None:
            self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._bottom is not None:
            with self._lock:
                self._bottom.draw("")

    def report(self, step: str) -> None:
        """Show what is done now. The same step again goes on."""
        with self._lock:
            if step != self._step:
                self._step, self._since = step, time.monotonic()

    def notify(self, text: str) -> None:
        """Print a message above the line."""
        if self._bottom is None:
            click.echo(text, file=self._out)
            return
        with self._lock:
            self._bottom.draw("" if self._ended.is_set() else self._line(), f"{text}\n")

    def _refresh(self) -> None:
        assert self._bottom is not None
        while not self._ended.wait(_REFRESH_S):
            with self._lock:
                if not self._ended.is_set():
                    self._bottom.draw(self._line())

    def _line(self) -> str:
        seconds = int(time.monotonic() - self._since)
        if not self._step:
            return ""
        return f" {self._step}  {seconds} s"[: shutil.get_terminal_size().columns - 1]
