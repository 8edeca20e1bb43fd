"""`jobs top`: all active jobs on one page, live."""

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, output_options
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.bottom_line import is_live
from trainyard_cli.output.text.safe import echo
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import JobState

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_cli.output.jobs.active_jobs import ActiveJobs
    from trainyard_protocol.views.views import ActiveJobsView

REFRESH_S = 2.0

_SLICE_S = 0.25  # between two looks at the size of the terminal
_TIMEOUT_S = 5.0
_QUIT = b"qQ\x04"
_ENTER_PAGE, _LEAVE_PAGE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_TOP, _END_OF_ROW, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command()
@click.option("--once", is_flag=True, help="Print the table once, as into a pipe.")
@connected
@output_options
def top(client: "Client", output: Output, once: bool) -> None:
    """Show all active jobs and what they do, live; q quits.

    Jobs of all projects that you have a role in: step, main metric, speed, time left, CPU and memory in use; for a
    queued one why it waits.
    """
    from trainyard_cli.client import Client
    from trainyard_cli.output.jobs.active_jobs import ActiveJobs, headline, wide_rows
    from trainyard_cli.v1_client import NO_RETRIES

    view = client.active_jobs()
    if formats.printed(output, [job.model_dump(mode="json", exclude_none=True) for job in view.jobs]):
        return
    if once or not is_live(sys.stdout):
        rows = wide_rows(ActiveJobs(client.project).lines(view))
        echo("\n".join([headline(view), *([""] if rows else []), *rows]))
    else:
        with (
            Client(client.server, client.project, retry_delays=NO_RETRIES, timeout=_TIMEOUT_S) as quick,
            contextlib.suppress(KeyboardInterrupt),
            _page() as is_quit,
        ):
            _show(view, quick.active_jobs, ActiveJobs(client.project), is_quit)


def _show(
    view: "ActiveJobsView", read: "Callable[[], ActiveJobsView]", jobs: "ActiveJobs", is_quit: Callable[[float], bool]
) -> None:
    from trainyard_cli.output.jobs.active_jobs import page

    lines, notice = jobs.lines(view), ""
    while True:
        next_read, drawn = time.monotonic() + REFRESH_S, None
        while time.monotonic() < next_read:
            size = shutil.get_terminal_size()
            if size != drawn:
                drawn = size
                _draw(page(view, lines, size.columns, size.lines, notice))
            if is_quit(_SLICE_S):
                return
        try:
            view, notice = read(), ""
        except TrainyardError as error:
            notice = error.message
        else:
            lines = jobs.lines(view)


def _draw(rows: Sequence[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    from trainyard_cli.output.log.log_screen import STATE_STYLES

    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as capture:
        for number, row in enumerate(rows):
            text = Text(row, "bold" if number == 2 else "")
            for state in JobState:
                text.highlight_words([f" {state} "], STATE_STYLES.get(state, "cyan"))
            console.print(text, soft_wrap=True)
    drawn = capture.get().removesuffix("\n").replace("\n", f"{_END_OF_ROW}\r\n")
    sys.stdout.write(f"{_TOP}{drawn}{_END_OF_ROW}{_REST}")
    sys.stdout.flush()


@contextlib.contextmanager
def _page() -> Iterator[Callable[[float], bool]]:
    """A page of its own on the terminal, and a function that waits for keys: whether q was pressed.

    What was on the terminal comes back at the end, also at SIGTERM."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    settings = termios.tcgetattr(keyboard) if keyboard is not None else None
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def is_quit(timeout: float) -> bool:
        if keyboard is None:
            time.sleep(timeout)
            return False
        ready, _, _ = select.select([keyboard], [], [], timeout)
        keys = os.read(keyboard, 64) if ready else None
        return keys is not None and (not keys or any(key in _QUIT for key in keys))

    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        sys.stdout.write(_ENTER_PAGE)
        sys.stdout.flush()
        yield is_quit
    finally:
        sys.stdout.write(_LEAVE_PAGE)
        sys.stdout.flush()
        if keyboard is not None and settings is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, settings)
        signal.signal(signal.SIGTERM, before)
