"""Log output in a pipe or file, with every line as it is: columns of severity, time, task and message."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import IO, Protocol

from trainyard_cli.output.text.safe import printable_json, without_control
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.log_views import SERVICE_TASK, LogEntry
from trainyard_protocol.states import JobState

SEVERITY_WIDTH = 8
TASK_WIDTH = len("worker-replica-0")

SEVERITY_STYLES = {"DEBUG": "dim", "NOTICE": "bold", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}
TASK_STYLES = ("cyan", "green", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
STATE_STYLES = {
    JobState.SUCCEEDED: "bold green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "bold yellow",
    JobState.CANCELLING: "yellow",
}
_PLAIN = "\x1b[0m"


class Screen(Protocol):
    """Output of a streamed job. `close` must be called and may be called twice."""

    def lines(self, entries: Sequence[LogEntry]) -> None:
        """Print log lines that came together."""

    def note(self, text: str) -> None:
        """Print a message that is not part of the log."""

    def status(self, detail: JobDetail) -> None:
        """Show the job's current state."""

    def close(self) -> None: ...


class PlainScreen:
    """Plain aligned lines: the log to `out`, notes to `err`, each flushed. On a terminal without control sequences;
    in a pipe or file unchanged."""

    def __init__(self, out: IO[str], err: IO[str]) -> None:
        self._out = out
        self._err = err
        self._width = TASK_WIDTH
        self._is_terminal = False

    def lines(self, entries: Sequence[LogEntry]) -> None:
        self._is_terminal = self._out.isatty()
        self._out.write("".join([f"{self._text(entry)}\n" for entry in entries]))
        self._out.flush()

    def _text(self, entry: LogEntry) -> str:
        task = task_label(entry)
        self._width = max(self._width, len(task))
        text = entry.text
        if self._is_terminal:
            text = without_control(text) + (_PLAIN if "\x1b" in text else "")
        return f"{entry.severity:<{SEVERITY_WIDTH}}  {local_time(entry.time)}  {task:<{self._width}}  {text}"

    def note(self, text: str) -> None:
        print(without_control(text) if self._err.isatty() else text, file=self._err, flush=True)

    def status(self, detail: JobDetail) -> None:
        for run in detail.runs[-1:]:
            self._width = max([self._width, *(len(replica.task) for replica in run.replicas)])

    def close(self) -> None:
        self._out.flush()


class JsonScreen(PlainScreen):
    """One JSON object per line, for scripts."""

    def _text(self, entry: LogEntry) -> str:
        return printable_json(entry.model_dump_json())


def elapsed(since: str, until: datetime) -> str:
    """`1:02:03` or `02:03` from an RFC 3339 time to `until`; never negative."""
    seconds = max(0, int((until - parse_rfc3339(since)).total_seconds()))
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"


def local_time(time: str, *, short: bool = False) -> str:
    """An RFC 3339 time in the local zone: `2026-11-20 14:25:01 +0100`, or `14:25:01`."""
    # Of a second there are many lines, and a line is shown to the second.
    second = f"{time[:19]}Z" if time[19:20] == "." and time.endswith("Z") else time
    return _local_second(second, short) or without_control(time)


@lru_cache(256)
def _local_second(time: str, short: bool) -> str:
    """The time in the local zone; "" for one that the zone of this machine does not have."""
    try:
        local = parse_rfc3339(time).astimezone()
    except (ValueError, OverflowError):
        return ""
    return local.strftime("%H:%M:%S" if short else "%Y-%m-%d %H:%M:%S %z")


def parse_rfc3339(time: str) -> datetime:
    return datetime.fromisoformat(time)


def task_label(entry: LogEntry) -> str:
    """The task's name, with the run's number from run 2 on."""
    return f"{entry.task}#{entry.run}" if entry.run > 1 and entry.task != SERVICE_TASK else entry.task
