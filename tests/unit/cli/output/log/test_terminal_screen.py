import io
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from trainyard_cli.output.log.live_log import LiveState, MetricsLine, ShownLine, TextLine
from trainyard_cli.output.log.log_screen import JsonScreen, PlainScreen, Screen
from trainyard_cli.output.log.terminal_screen import Layout, TerminalScreen, screen_for
from trainyard_cli.output.text import activity as activity_module
from trainyard_cli.output.text.activity import Activity
from trainyard_cli.output.text.bottom_line import BottomLine
from trainyard_protocol.answers.jobs import JobDetail, ReplicaView, RunView
from trainyard_protocol.states import JobState, ReplicaState, RunState
from unit.cli.terminal import NOON, Terminal, entry

pyte = pytest.importorskip("pyte", reason="pyte, of the dev extra, shows what a terminal would")

GANG = ("master-replica-0", "worker-replica-0")
RUNNING = LiveState(JobState.RUNNING, (), "01:00", 1200, 50_000, 0.024, "2/5", "loss 0.312", 8.3, 3726.0)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm-256color", "TZ": "UTC", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def detail(state: JobState, gang: Sequence[str] = GANG) -> JobDetail:
    replicas = tuple(ReplicaView(task=task, state=ReplicaState.RUNNING, machine_type="m") for task in gang)
    run = RunView(run_id="r", number=1, state=RunState.RUNNING, agent="a", created_at=NOON, replicas=replicas)
    return JobDetail(job={"jobId": "j", "createTime": "2026-11-20T12:00:00Z"}, state=state, runs=(run,))


def layout(encoding: str = "utf-8") -> Layout:
    """The layout of a terminal with that encoding."""
    out = Terminal()
    out.encoding = encoding
    return Layout(Console(file=out))


def display(written: str, columns: int = 80, rows: int = 24) -> list[str]:
    """Rows on the screen of a terminal that got this."""
    screen = pyte.Screen(columns, rows)
    pyte.Stream(screen).feed(written.replace("\n", "\r\n"))
    return [line.rstrip() for line in screen.display if line.strip()]


def test_screen_shows_lines_above_one_line_that_is_gone_at_the_end() -> None:
    out = Terminal()
    screen = TerminalScreen(out, lambda: NOON)
    screen.status(detail(JobState.RUNNING))
    for step in (1, 2, 3):
        screen.lines([entry(json.dumps({"event": "progress", "step": step, "steps": 4, "loss": 0.5}))])
        screen.note(f"note {step}")
    live = display(out.getvalue())
    screen.lines([entry("hello", severity="WARNING")])
    screen.close()
    screen.note("The end.")
    screen.close()
    assert live == ["note 1", "note 2", "note 3", " RUNNING  ━━━━━━━━━━━━━━━━━━╺━━━━━ 3/4  loss 0.500"]
    assert display(out.getvalue()) == ["note 1", "note 2", "note 3", "12:00:00 master   W hello", "The end."]
    assert out.getvalue().endswith("\n")


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("\x1b[]m;0\x07\r\x9b?")), max_size=3))
def test_no_line_moves_the_cursor_or_does_more_than_colour(texts: list[str]) -> None:
    shown = layout()
    for text in [*texts, "a\x1b]0;owned\x07b\x1b[31mred\x1b[2Jc\x00\x08\x1bPq\x1b\\d"]:
        for row in (
            *shown.rows(TextLine(NOON.isoformat(), GANG[:1], "master", "INFO", text), 80),
            *shown.rows(MetricsLine(NOON.isoformat(), GANG[:1], "", "epoch 1", (text,)), 80),
            shown.state(replace(RUNNING, metric=text), 80),
            shown.state(LiveState(JobState.QUEUED, (text,)), 80),
        ):
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", row.plain)


@pytest.mark.parametrize(
    ("state", "width", "row"),
    [(RUNNING, 120, " RUNNING  ╸━━━━━━━━━━━━━━━━━━━━━━━ 1200/50000  epoch 2/5  loss 0.312  8.3 steps/s  1:02:06 left"),
     (RUNNING, 79, " RUNNING  ━━━━━━━━━━ 1200/50000  loss 0.312  8.3 steps/s  1:02:06 left"), (RUNNING, 60,
     " RUNNING  ━━━━━━━━━━ 1200/50000  loss 0.312  1:02:06 left"), (RUNNING, 40, " RUNNING  1200/50000  1:02:06 left"),
     (RUNNING, 20, " RUNNING  1200/5000…"), (LiveState(JobState.QUEUED, ("#3 in the queue", "needs 4 vCPU"), "00:12"),
     79, " QUEUED  00:12  #3 in the queue  needs 4 vCPU"), (LiveState(JobState.PREPARING, ("installing x",), "00:12"),
     79, " PREPARING  00:12  installing x"), (replace(RUNNING, silent_s=40.5, epoch="", steps_per_s=0.1), 79,
     " RUNNING  ━━━━━━━━━━ 1200/50000  loss 0.312  10.0 s/step  no step for 40 s"), (replace(RUNNING, steps=None,
     done=None, left_s=None), 79, " RUNNING  step 1200  epoch 2/5  loss 0.312  8.3 steps/s"),
     (LiveState(JobState.RUNNING, epoch="2/5", metric="loss 1"), 79, " RUNNING  epoch 2/5  loss 1")],
)  # fmt: skip
def test_state_is_short_and_leaves_out_what_matters_least(state: LiveState, width: int, row: str) -> None:
    assert layout().state(state, width).plain == row


def test_state_is_ascii_where_the_terminal_is() -> None:
    row = layout("ascii").state(replace(RUNNING, done=0.5), 79).plain
    assert row == " RUNNING  ----- ---- 1200/50000  loss 0.312  8.3 steps/s  1:02:06 left"


@pytest.mark.parametrize(
    ("line", "rows"),
    [(TextLine("", GANG[1:], "worker-0", "ERROR", "word " * 12 + "x" * 30),
     ["12:00:00 worker-0 E word word word word", "                    word word word word",
     "                    word word word word", "                    xxxxxxxxxxxxxxxxxxxx",
     "                    xxxxxxxxxx"]), (TextLine("", GANG, "", "INFO", "twice", 2), ["12:00:00 twice (2 replicas)"]),
     (TextLine("", GANG, "", "INFO", "no room for the number", 2), ["12:00:00 no room for the number"]), (TextLine("",
     GANG, "", "INFO", ""), ["12:00:00"]), (TextLine("", GANG, "", "INFO", "a\tb\t日本語"),
     ["12:00:00 a       b       日本語"]), (MetricsLine("", GANG[:1], "", "epoch 1/5", ("loss 0.312, val 0.281",
     "accuracy 0.912")), ["12:00:00 epoch 1/5  loss 0.312, val 0.281", "                    accuracy 0.912"]),
     (MetricsLine("", GANG[1:], "worker-0", "step 9", ("a 1", "b 2")), ["12:00:00 worker-0   step 9  a 1  b 2"])],
)  # fmt: skip
def test_rows_are_indented_and_fit(line: ShownLine, rows: list[str]) -> None:
    shown = layout()
    shown.add(GANG)
    made = shown.rows(replace(line, time=NOON.isoformat()), 40)
    assert [row.plain.rstrip() for row in made] == rows


def test_bottom_line_is_erased_with_what_a_narrower_terminal_made_of_it() -> None:
    """The cursor waits at its start: a terminal that wraps it anew keeps the cursor there, and the rest is below."""
    out = Terminal()
    bottom = BottomLine(out)
    bottom.draw("a" * 40)
    assert out.getvalue().endswith("\r")
    written = out.getvalue()
    bottom.draw("a" * 40)
    assert out.getvalue() == written
    bottom.draw("b", "above\n")
    bottom.draw("")
    narrow = pyte.Screen(30, 5)
    pyte.Stream(narrow).feed("a" * 40 + "\r\x1b[A" + out.getvalue().removeprefix(written).replace("\n", "\r\n"))
    assert [line.rstrip() for line in narrow.display] == ["above", "", "", "", ""]


def test_raw_screen_shows_every_line_with_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        entry('{"event": "progress", "step": 1, "steps": 4}'),
        entry("[bold]no markup[/bold] \x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m", severity="ERROR"),
    ]
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        out = Terminal()
        screen = TerminalScreen(out, lambda: NOON, raw=True)
        screen.status(detail(JobState.RUNNING))
        screen.lines(lines)
        screen.note("note")
        live = display(out.getvalue())
        screen.close()
        screen.close()
        assert live[:-1] == display(out.getvalue())
        assert live[-1].startswith(" RUNNING  ━━━━━━")
        assert live[0].startswith('INFO      12:00:00  master-replica-0  {"event": "progress", "step": 1')
        assert "ERROR     12:00:00  master-replica-0  [bold]no markup[/bold] red" in live
        assert ("\x1b[31m" in out.getvalue()) == (not no_color)


def test_screen_for_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, expected in {"pipe": PlainScreen, "xterm": TerminalScreen, "dumb": PlainScreen, "": PlainScreen}.items():
        monkeypatch.setenv("TERM", kind)
        out = io.StringIO() if kind == "pipe" else Terminal()
        screen = screen_for(out, out, raw=kind == "xterm")
        screen.close()
        assert type(screen) is expected, kind
    assert type(screen_for(Terminal(), Terminal(), as_json=True)) is JsonScreen


def test_activity_is_a_line_below_the_messages_that_is_gone_at_the_end() -> None:
    out, pipe, give_up_at = Terminal(), io.StringIO(), time.monotonic() + 60
    with Activity(out) as activity:
        activity.notify("Before it is drawn.")
        activity.report("packaging [red]prog")
        while not (shown := display(out.getvalue())[1:]):
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        activity.notify("A message: [bold]as it is[/bold].")
    assert re.fullmatch(r"\S packaging \[red\]prog 0:00:\d\d", shown[0])
    assert display(out.getvalue()) == ["Before it is drawn.", "A message: [bold]as it is[/bold]."]
    with Activity(pipe) as activity:
        activity.report("packaging prog")
        activity.notify("A message.")
    assert pipe.getvalue() == "A message.\n"


def test_activity_that_takes_long_is_a_line_now_and_then_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_module, "LINE_S", 0.0)
    pipe, give_up_at = io.StringIO(), time.monotonic() + 60
    with Activity(pipe) as activity:
        activity.report("starting the server")
        while pipe.getvalue().count("starting the server  ") < 2:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
    assert "\r" not in pipe.getvalue()


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
