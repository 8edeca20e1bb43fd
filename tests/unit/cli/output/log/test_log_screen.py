import io
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from trainyard_cli.output.log import log_screen
from trainyard_cli.output.log.log_screen import JsonScreen, PlainScreen, Screen
from trainyard_cli.output.log.terminal_screen import TerminalScreen
from trainyard_cli.output.text.safe import without_control
from trainyard_protocol.views.views import LogEntry
from unit.cli.terminal import NOON, Terminal, entry


def test_plain_screen_aligns_severity_time_task_and_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    out, err = io.StringIO(), io.StringIO()
    screen = PlainScreen(out, err)
    screen.lines([entry("hello")])
    screen.lines([entry("Job j is queued.", task="service", severity="WARNING")])
    screen.note("Reconnected to the server.")
    screen.close()
    first, second = out.getvalue().splitlines()
    assert first.startswith("INFO      2026-11-20 12:00:00 +0000  master-replica-0  hello")
    assert second.index("Job j is queued.") == first.index("hello")
    assert err.getvalue() == "Reconnected to the server.\n"


def test_plain_screen_keeps_the_text_as_it_is() -> None:
    out = io.StringIO()
    PlainScreen(out, out).lines([entry('{"loss": 0.5}  \x1b[31mred\x1b[0m')])
    assert out.getvalue().endswith('  {"loss": 0.5}  \x1b[31mred\x1b[0m\n')


@pytest.mark.parametrize("make", [lambda out: PlainScreen(out, out), lambda out: TerminalScreen(out, raw=True)])
def test_line_cannot_play_tricks_with_a_terminal(make: Callable[[Terminal], Screen]) -> None:
    out = Terminal()
    screen = make(out)
    screen.lines([entry("a\x1b]0;owned\x07b\x1b[31mred\x1b[2Jc\x00\x08\x1bPq\x1b\\d")])
    screen.note("    last\x1b]52;c;xx\x1b\\ line")
    screen.close()
    shown = out.getvalue()
    for trick in ("owned", "\x1b]", "\x1b[2J", "\x00", "\x08", "\x1bP", "52;c"):
        assert trick not in shown
    assert "red" in shown
    assert "last line" in shown


def test_json_screen_prints_entries_that_can_be_read_back() -> None:
    out = io.StringIO()
    JsonScreen(out, io.StringIO()).lines([entry("a\nb")])
    assert LogEntry.model_validate_json(out.getvalue()) == entry("a\nb")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("a\x1b[2J\x1b[Hb", "ab"),
        ("a\x1b]0;owned\x07b", "ab"),
        ("a\x1b]52;c;xx\x1b\\b", "ab"),
        ("a\x07\x08\rb\tc", "ab\tc"),
        ("a\x1bcb\x9b", "ab"),
        ("cut\x1b[12", "cut[12"),
        ("cut\x1b", "cut"),
    ],
)
def test_without_control_leaves_colours_and_nothing_that_moves_the_cursor(text: str, clean: str) -> None:
    assert without_control(text) == clean


def test_task_label_from_the_second_run_on_has_the_number_of_the_run() -> None:
    assert log_screen.task_label(entry("x", run=2)) == "master-replica-0#2"
    assert log_screen.task_label(entry("x", run=2, task="service")) == "service"


@pytest.mark.parametrize(("seconds", "text"), [(0, "00:00"), (61, "01:01"), (3723, "1:02:03"), (-5, "00:00")])
def test_elapsed_is_short_and_never_negative(seconds: int, text: str) -> None:
    until = datetime.fromtimestamp(NOON.timestamp() + seconds, UTC)
    assert log_screen.elapsed("2026-11-20T12:00:00Z", until) == text
