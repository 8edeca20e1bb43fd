"""Log output with every line as it is: columns of severity, time, task and message.

Plain lines in a pipe or file; with `--raw` on a terminal colours and a live status line at the bottom.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Protocol

from trainyard_cli.output.jobs import study_status
from trainyard_cli.output.text.safe import printable_json
from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState
from trainyard_protocol.views.views import SERVICE_TASK, JobDetail, LogEntry

if TYPE_CHECKING:
    from rich.text import Text

SEVERITY_WIDTH = 8
TASK_WIDTH = len("worker-replica-0")

SEVERITY_STYLES = {
    "DEBUG": "dim",
    "NOTICE": "bold",
    "WARNING": "yellow",
    "ERROR": "red",
    "CRITICAL": "bold red",
}
TASK_STYLES = ("cyan", "green", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")
STATE_STYLES = {
    JobState.SUCCEEDED: "bold green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "bold yellow",
    JobState.CANCELLING: "yellow",
}
_ESCAPES = re.compile(r"\x1b(?:\[(?![0-9;]*m)[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[^\[\]])")
_BROKEN_ESCAPE = re.compile(r"\x1b(?!\[[0-9;]*m)")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f\x80-\x9f]")
_PLAIN = "\x1b[0m"
_PROGRESS_KEYS = ("epoch", "step")


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

    def line(self, entry: LogEntry) -> None:
        self.lines((entry,))

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


class LiveScreen:
    """Every line on a terminal: colours by severity and task, and a status line at the bottom."""

    def __init__(self, out: IO[str], clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._clock = clock
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._detail: JobDetail | None = None
        self._progress: dict[str, str] = {}
        self._width = TASK_WIDTH
        self._styles: dict[str, str] = {SERVICE_TASK: "dim"}
        self._live = Live(
            get_renderable=self._status_line,
            console=self._console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def lines(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            self.line(entry)

    def line(self, entry: LogEntry) -> None:
        task = task_label(entry)
        self._width = max(self._width, len(task))
        self._progress |= progress_of(entry.text)
        text = self._text.assemble(
            (f"{entry.severity:<{SEVERITY_WIDTH}}", SEVERITY_STYLES.get(entry.severity, "dim")),
            "  ",
            (local_time(entry.time, short=True), "dim"),
            "  ",
            (f"{task:<{self._width}}", self._style_of(entry.task)),
            "  ",
        )
        text.append_text(self._text.from_ansi(without_control(entry.text)))
        self._console.print(text, soft_wrap=True)

    def note(self, text: str) -> None:
        # Notes contain lines of replicas.
        self._console.print(self._text.from_ansi(without_control(text)), soft_wrap=True)

    def status(self, detail: JobDetail) -> None:
        self._detail = detail
        if detail.state in FINAL_JOB_STATES:
            self._live.stop()

    def close(self) -> None:
        self._live.stop()

    def _style_of(self, task: str) -> str:
        return self._styles.setdefault(task, TASK_STYLES[(len(self._styles) - 1) % len(TASK_STYLES)])

    def _status_line(self) -> "Text":
        if self._detail is None:
            return self._text("")
        words = status_words(self._detail, self._progress, self._clock())
        text = self._text(no_wrap=True, overflow="ellipsis")
        text.append(words[0], STATE_STYLES.get(self._detail.state, "bold cyan"))
        for word in words[1:]:
            text.append(" · ", "dim").append(word)
        return text


def status_words(detail: JobDetail, progress: dict[str, str], now: datetime) -> list[str]:
    """Parts of the status line: state, replicas, elapsed time, last step. Pure."""
    words = [str(detail.state)]
    if detail.waiting:
        words.append(detail.waiting)
    if detail.runs and detail.state not in (JobState.QUEUED, *FINAL_JOB_STATES):
        run = detail.runs[-1]
        up = sum(replica.state is ReplicaState.RUNNING for replica in run.replicas)
        words.append(f"{up} of {len(run.replicas)} replicas running")
        if run.activity:
            words.append(run.activity)
        if run.number > 1:
            words.append(f"run {run.number}")
    words += map(without_control, study_status.words(detail.job))
    since = detail.job.get("startTime") or detail.job.get("createTime")
    if since:
        words.append(elapsed(since, now))
    if detail.state is JobState.RUNNING:
        words += [f"{name} {value}" for name, value in progress.items()]
    return words


def progress_of(text: str) -> dict[str, str]:
    """Epoch and step of a structured log line, with totals if given (`epochs`, `steps`); else empty."""
    if not text.startswith("{"):
        return {}
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    progress = {}
    for name in _PROGRESS_KEYS:
        done, total = _number(fields.get(name)), _number(fields.get(f"{name}s"))
        if done or total:
            progress[name] = f"{done}/{total}" if done and total else done or total
    return progress


def _number(value: object) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    try:
        return f"{value:.10g}"
    except OverflowError:  # an integer beyond the range of float
        return ""


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


def without_control(text: str) -> str:
    """Remove control characters and escape sequences from a line, except for colours."""
    return _BROKEN_ESCAPE.sub("", _CONTROLS.sub("", _ESCAPES.sub("", text)))
