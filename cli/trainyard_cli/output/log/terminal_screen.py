"""Live view of a job on a terminal: the lines that matter, or with `raw` every line, and below them what the job does
now.

`live_log` decides what is shown; here it gets its place, its colours and its width.
"""

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from trainyard_cli.output.log.live_log import LiveLog, LiveState, MetricsLine, ShownLine, TextLine, short_task
from trainyard_cli.output.log.log_screen import (
    SEVERITY_STYLES,
    SEVERITY_WIDTH,
    STATE_STYLES,
    TASK_STYLES,
    TASK_WIDTH,
    JsonScreen,
    PlainScreen,
    Screen,
    local_time,
    task_label,
)
from trainyard_cli.output.log.pace import left_text, rate_text, silent_text
from trainyard_cli.output.text.bottom_line import BottomLine, is_live
from trainyard_cli.output.text.safe import without_control
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.log_views import SERVICE_TASK, LogEntry

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

REFRESH_S = 0.2

_BAR_WIDTHS = (24, 16, 10)
_LONG = 2000  # characters of a line that is left to the terminal to wrap
_PRINTED_AT_ONCE = 50  # rows: rich is slow at each print, and at many styles
_LEAST_WIDTH = 20  # of a line's text
_LETTERS = {"DEBUG": "D", "NOTICE": "N", "WARNING": "W", "ERROR": "E", "CRITICAL": "C"}
_SEPARATOR = "  "


def screen_for(out: IO[str], err: IO[str], *, as_json: bool = False, raw: bool = False) -> Screen:
    """The live view on a terminal that can move its cursor, with every line if `raw`; elsewhere plain lines."""
    if as_json:
        return JsonScreen(out, err)
    return TerminalScreen(out, raw=raw) if is_live(out) else PlainScreen(out, err)


class TerminalScreen:
    """Screen of a terminal. Its lines are drawn by a thread, so that the time goes on while nothing is printed. `raw`:
    every line is shown, as it was printed."""

    def __init__(
        self, out: IO[str], clock: Callable[[], datetime] = lambda: datetime.now(UTC), *, raw: bool = False
    ) -> None:
        from rich.console import Console

        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._bottom = BottomLine(out)
        self._clock = clock
        self._log = LiveLog()
        self._raw: list[Text] | None = [] if raw else None
        self._layout = Layout(self._console)
        self._drawn = clock()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="screen", daemon=True)
        self._thread.start()

    def lines(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            with self._lock:
                now = self._clock()
                self._log.add(entry, now)
                if self._raw is not None:
                    self._raw.append(self._layout.raw_row(entry))
                if (now - self._drawn).total_seconds() >= REFRESH_S:
                    self._draw(self._log.due(now))

    def note(self, text: str) -> None:
        from rich.text import Text

        with self._lock:
            rest = [] if self._closed.is_set() else self._log.rest(self._clock())
            self._draw(rest, Text.from_ansi(without_control(text)))

    def status(self, detail: JobDetail) -> None:
        with self._lock:
            self._log.status(detail)
            self._layout.add(replica.task for run in detail.runs[-1:] for replica in run.replicas)

    def close(self) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self._draw(self._log.rest(self._clock()))

    def _refresh(self) -> None:
        while not self._closed.wait(REFRESH_S):
            with self._lock:
                if not self._closed.is_set():
                    self._draw(self._log.due(self._clock()))

    def _draw(self, lines: Sequence[ShownLine], note: "Text | None" = None) -> None:
        from rich.text import Text

        self._drawn = now = self._clock()
        width = self._console.width
        if self._raw is not None:
            rows, self._raw = self._raw, []
        else:
            rows = [row for line in lines for row in self._layout.rows(line, width)]
        with self._console.capture() as capture:
            for start in range(0, len(rows), _PRINTED_AT_ONCE):
                self._console.print(Text("\n").join(rows[start : start + _PRINTED_AT_ONCE]), soft_wrap=True)
            if note is not None:
                self._console.print(note, soft_wrap=True)
        above, below = capture.get(), ""
        state = None if self._closed.is_set() else self._log.state(now)
        if state is not None:
            with self._console.capture() as capture:
                self._console.print(self._layout.state(state, width - 1), soft_wrap=True, end="")
            below = capture.get()
        self._bottom.draw(below, above)


class Layout:
    """Columns and colours of one job's view: a colour for each replica, a letter for a severity above or below INFO."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._is_ascii = console.options.ascii_only
        self._styles = {SERVICE_TASK: "dim"}
        self._who_width = len("worker-0")
        self._task_width = TASK_WIDTH

    def add(self, tasks: Iterable[str]) -> None:
        """Make room for the names of a run's replicas."""
        self._who_width = max([self._who_width, *(len(short_task(task)) for task in tasks)])

    def rows(self, line: ShownLine, width: int) -> list["Text"]:
        """The line in rows of at most `width` columns, the later ones indented. Only a very long one is wider."""
        return self._text_rows(line, width) if isinstance(line, TextLine) else self._metric_rows(line, width)

    def raw_row(self, entry: LogEntry) -> "Text":
        """The line as it was printed, after its severity, time and replica."""
        from rich.text import Text

        task = task_label(entry)
        self._task_width = max(self._task_width, len(task))
        row = Text.assemble(
            (f"{entry.severity:<{SEVERITY_WIDTH}}", SEVERITY_STYLES.get(entry.severity, "dim")),
            (f"  {local_time(entry.time, short=True)}  ", "dim"),
            (f"{task:<{self._task_width}}  ", self._style((entry.task,))),
        )
        return row.append_text(Text.from_ansi(without_control(entry.text)))

    def state(self, state: LiveState, width: int) -> "Text":
        """One row, with as much as there is room for."""
        if state.step is None and not state.epoch:
            texts = [self._state_word(state), *map(_text, (state.elapsed, *state.words))]
            return self._fitted(_joined(texts), width)
        pieces = {
            "state": self._state_word(state),
            "step": _text(_step_text(state)),
            "epoch": _text(f"epoch {state.epoch}" if state.epoch and state.step is not None else ""),
            "metric": _text(state.metric),
            "rate": _text(rate_text(state.steps_per_s) if state.steps_per_s else ""),
            "left": _left(state),
        }
        for bar_width, dropped in _LAYOUTS:
            kept = {name: text for name, text in pieces.items() if name not in dropped}
            if state.done is not None and bar_width:
                kept["step"] = self._bar(state.done, bar_width).append_text(kept["step"])
            row = _joined(list(kept.values()))
            if row.cell_len <= width:
                break
        return self._fitted(row, width)

    def _text_rows(self, line: TextLine, width: int) -> list["Text"]:
        from rich.text import Text

        prefix = self._prefix(line.time, line.who, line.tasks)
        if letter := _LETTERS.get(line.severity, "" if not line.who else " "):
            prefix.append(f"{letter} ", SEVERITY_STYLES.get(line.severity, ""))
        style = SEVERITY_STYLES.get(line.severity, "dim" if line.tasks == (SERVICE_TASK,) else "")
        text = without_control(line.text)
        if len(text) > _LONG:
            return [prefix.append(without_colours(text), style)]
        body = Text.from_ansi(text, style=style)
        wrapped = body.wrap(self._console, max(_LEAST_WIDTH, width - prefix.cell_len), overflow="fold")
        indent = Text(" " * prefix.cell_len)
        rows = [(indent if number else prefix).copy().append_text(row) for number, row in enumerate(wrapped)]
        count = f" ({line.replicas} replicas)"
        if not line.who and line.replicas > 1 and rows[-1].cell_len + len(count) <= width:
            rows[-1].append(count, "dim")
        return rows

    def _metric_rows(self, line: MetricsLine, width: int) -> list["Text"]:
        """Rows that are broken between metrics."""
        from rich.text import Text

        row = self._prefix(line.time, line.who, line.tasks).append("  " if line.who else "")
        row.append(line.heading, "bold")
        indent = row.cell_len
        rows = [row]
        for value in map(without_colours, line.values):
            if rows[-1].cell_len > indent and rows[-1].cell_len + 2 + len(value) > width:
                rows.append(Text(" " * indent))
            rows[-1].append(f"  {value}")
        return rows

    def _prefix(self, time: str, who: str, tasks: tuple[str, ...]) -> "Text":
        from rich.text import Text

        prefix = Text.assemble((local_time(time, short=True), "dim"), " ")
        return prefix.append(f"{who:<{self._who_width}} ", self._style(tasks)) if who else prefix

    def _style(self, tasks: tuple[str, ...]) -> str:
        if len(tasks) > 1:
            return "bold"
        return self._styles.setdefault(tasks[0], TASK_STYLES[(len(self._styles) - 1) % len(TASK_STYLES)])

    def _state_word(self, state: LiveState) -> "Text":
        from rich.text import Text

        return Text(f" {state.state}", STATE_STYLES.get(state.state, "bold cyan"))

    def _fitted(self, row: "Text", width: int) -> "Text":
        row.truncate(width, overflow="crop" if self._is_ascii else "ellipsis")
        return row

    def _bar(self, done: float, width: int) -> "Text":
        from rich.progress_bar import ProgressBar

        segments = self._console.render(
            ProgressBar(1.0, done, width, complete_style="green", finished_style="green"), self._console.options
        )
        bar = _text("").append_tokens((segment.text, segment.style) for segment in segments)
        bar.pad_right(width + 1 - bar.cell_len)
        return bar


_LAYOUTS: Sequence[tuple[int, frozenset[str]]] = (
    *((width, frozenset()) for width in _BAR_WIDTHS),
    (_BAR_WIDTHS[-1], frozenset({"epoch"})),
    (_BAR_WIDTHS[-1], frozenset({"rate", "epoch"})),
    (0, frozenset({"rate", "epoch"})),
    (0, frozenset({"rate", "epoch", "metric"})),
)
"""Width of the bar and the parts that are left out, from the widest to the narrowest."""


def without_colours(text: str) -> str:
    """Remove control characters and every escape sequence."""
    return re.sub(r"\x1b\[[0-9;]*m", "", without_control(text)).replace("\x1b", "")


def _step_text(state: LiveState) -> str:
    if state.step is None:
        return f"epoch {state.epoch}"
    return f"{state.step}/{state.steps}" if state.steps is not None else f"step {state.step}"


def _left(state: LiveState) -> "Text":
    if state.silent_s is not None:
        return _text(silent_text(state.silent_s), "yellow")
    return _text(left_text(state.left_s) if state.left_s is not None else "")


def _joined(texts: Iterable["Text"]) -> "Text":
    """The texts that are not empty, in one row."""
    return _text(_SEPARATOR).join(text for text in texts if text)


def _text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(without_colours(text), style, no_wrap=True)
