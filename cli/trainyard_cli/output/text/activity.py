"""Current step of a command that takes a while: what it does, and for how long. In place on a terminal, else a line now
and then."""

import sys
import threading
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

import click

from trainyard_cli.output.text.bottom_line import is_live

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_START_S = 0.2
"""What is done sooner shows nothing, and does not load rich."""

_LOOK_S = 0.2
LINE_S = 10.0
"""Seconds between two lines about one step where nothing can be drawn in place."""


class Activity:
    """One line below the messages of a command, while it is entered. Where nothing can be drawn in place, as in the log
    of a pipeline, a step that takes long is a line every ten seconds."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._step, self._since, self._printed_at = "", 0.0, 0.0
        self._line: tuple[Progress, TaskID] | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        show = self._draw if is_live(self._out) else self._print_now_and_then
        self._thread = threading.Thread(target=show, name="activity", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with self._lock:
            if self._line is not None:
                self._line[0].stop()
                self._line = None

    def report(self, step: str) -> None:
        """Show what is done now. The same step again goes on."""
        with self._lock:
            if step == self._step:
                return
            self._step = step
            self._since = self._printed_at = time.monotonic()
            if self._line is not None:
                progress, task = self._line
                progress.reset(task, description=step, visible=True)

    def notify(self, text: str) -> None:
        """Print a message above the line."""
        with self._lock:
            if self._line is None:
                click.echo(text, file=self._out)
            else:
                self._line[0].console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        """Show the line, which rich then refreshes."""
        if self._ended.wait(_START_S):
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        progress = Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=Console(file=self._out), transient=True)
        with self._lock:
            if not self._ended.is_set():
                progress.start()
                self._line = progress, progress.add_task(self._step, total=None, visible=bool(self._step))

    def _print_now_and_then(self) -> None:
        while not self._ended.wait(_LOOK_S):
            with self._lock:
                now = time.monotonic()
                if not self._ended.is_set() and self._step and now - self._printed_at >= LINE_S:
                    self._printed_at = now
                    click.echo(f"{self._step}  {now - self._since:.0f} s", file=self._out)
