"""Current step of a command that takes a while: what it does, and for how long. In place on a terminal, else a line now
and then."""

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import IO, Self

import click

from trainyard_cli.output.text.bottom_line import BottomLine, is_live

_REFRESH_S = 0.2
LINE_S = 10.0
"""Seconds between two lines about one step where nothing can be drawn in place."""


class Activity:
    """One line below the messages of a command, while it is entered. Where nothing can be drawn in place, as in the log
    of a pipeline, a step that takes long is a line every ten seconds."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._bottom = BottomLine(self._out) if is_live(self._out) else None
        self._step, self._since, self._printed_at = "", 0.0, 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="activity", daemon=True)

    def __enter__(self) -> Self:
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
                self._step = step
                self._since = self._printed_at = time.monotonic()

    def notify(self, text: str) -> None:
        """Print a message above the line."""
        if self._bottom is None:
            click.echo(text, file=self._out)
            return
        with self._lock:
            self._bottom.draw("" if self._ended.is_set() else self._line(), f"{text}\n")

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_S):
            with self._lock:
                if self._ended.is_set():
                    return
                if self._bottom is not None:
                    self._bottom.draw(self._line())
                elif self._step and time.monotonic() - self._printed_at >= LINE_S:
                    self._printed_at = time.monotonic()
                    click.echo(self._line().strip(), file=self._out)

    def _line(self) -> str:
        seconds = int(time.monotonic() - self._since)
        if not self._step:
            return ""
        return f" {self._step}  {seconds} s"[: shutil.get_terminal_size().columns - 1]
