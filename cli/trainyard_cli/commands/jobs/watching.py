"""`jobs list --watch`: the table of `jobs list` on a page of its own, live."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.local.connect import connect_v1
from trainyard_cli.output.jobs import job_table
from trainyard_cli.output.text.bottom_line import is_live
from trainyard_cli.output.text.safe import printable
from trainyard_cli.settings import Target
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

if TYPE_CHECKING:
    from trainyard_cli.v1_client import V1Client

REFRESH_S = 2.0

_SLICE_S = 0.25  # between two looks at the size of the terminal
_TIMEOUT_S = 5.0
_QUIT = b"qQ\x04"
_ACTIVE = " ".join(state for state in JobState if state not in FINAL_JOB_STATES)


def watch_jobs(target: Target, filter_: str, limit: int | None) -> None:
    """Show the active jobs and the newest others until q or Ctrl-C. It goes on while the server does not answer."""
    if not is_live(sys.stdout):
        raise click.UsageError(
            "argument --watch: It needs a terminal. `jobs list` prints the jobs once, `jobs wait JOB` waits for the "
            "end of a job."
        )
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from trainyard_cli.v1_client import NO_RETRIES, V1Client

    console = Console(highlight=False)
    with connect_v1(target) as client:
        shown, notice = _newest(client, filter_, limit, console.height), ""

    def page() -> Text:
        headline = printable(f"{datetime.now().astimezone():%H:%M:%S}  {notice or 'q quits'}")
        table = job_table.fitted(*shown, console.width, datetime.now(UTC)) if shown[0] else "No jobs."
        return Text.from_ansi(f"{headline}\n{table}", no_wrap=True, overflow="crop")

    with (
        V1Client(client.server, client.project, retry_delays=NO_RETRIES, timeout=_TIMEOUT_S) as quick,
        suppress(KeyboardInterrupt),
        _keyboard() as is_quit,
        Live(console=console, screen=True, get_renderable=page, auto_refresh=False) as live,
    ):
        while True:
            next_read = time.monotonic() + REFRESH_S
            while time.monotonic() < next_read:
                live.refresh()
                if is_quit(_SLICE_S):
                    return
            try:
                shown, notice = _newest(quick, filter_, limit, console.height), ""
            except TrainyardError as error:
                notice = error.message


def _newest(
    client: "V1Client", filter_: str, limit: int | None, height: int
) -> tuple[list[dict[str, Any]], Mapping[str, Mapping[str, Any]]]:
    """The active jobs and the newest others, as many as there is room for, and what the active ones do."""
    count = max(1, min(limit or height, height - 2))
    newest = list(client.list_jobs(filter_, count, with_results=True))
    active = f"({filter_}) AND state:({_ACTIVE})" if filter_.strip() else f"state:({_ACTIVE})"
    jobs = list(client.list_jobs(active, count, with_results=True))
    jobs += [job for job in newest if job["state"] in FINAL_JOB_STATES]
    return jobs[:count], job_table.activities(client, jobs[:count])


@contextmanager
def _keyboard() -> Iterator[Callable[[float], bool]]:
    """A function that waits for keys: whether q was pressed. SIGTERM ends the program in order meanwhile, so that the
    terminal is as it was."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    settings = termios.tcgetattr(keyboard) if keyboard is not None else None
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def is_quit(timeout_s: float) -> bool:
        if keyboard is None:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select([keyboard], [], [], timeout_s)
        keys = os.read(keyboard, 64) if ready else None
        return keys is not None and (not keys or any(key in _QUIT for key in keys))

    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        yield is_quit
    finally:
        if keyboard is not None and settings is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, settings)
        signal.signal(signal.SIGTERM, before)
