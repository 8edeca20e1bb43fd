"""Lines that jobs print: nothing that reads, stores, sends or shows them fails, whatever they are."""

import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from trainyard_agent.engines.docker.streams.log_copier import LineReader
from trainyard_agent.installer.output import error_excerpt
from trainyard_agent.monitoring.stall_detector import StepHistory
from trainyard_agent.runtimes.supervisor import LineSplitter
from trainyard_cli.output.log.live_log import HOLD_S, LiveLog, TextLine, event_text
from trainyard_cli.output.log.log_screen import JsonScreen, PlainScreen, local_time
from trainyard_cli.output.log.terminal_screen import Layout
from trainyard_cli.output.text.safe import without_control
from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.answers.metrics import MetricsDigest
from trainyard_protocol.lines.progress import MAX_STEP, parse
from trainyard_protocol.lines.progress_reader import ProgressReader
from trainyard_protocol.lines.severity import SEVERITIES, SeverityReader
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.domain.lifecycle.causes import Cause
from trainyard_server.domain.lifecycle.stalls import main_stack
from trainyard_server.services.logs.formats import as_batch, as_events, as_text
from trainyard_server.services.measurements.curves import JobCurves
from trainyard_server.services.measurements.job_files import _reported_model
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.logs.filter import LogFilter
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.progress import ProgressTracker
from trainyard_server.storage.streams import Stream

TASK = "master-replica-0"
STREAM = Stream(1, TASK)
NUMBERS = itertools.count()
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TIMES = (
    "2026-11-20T12:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999-14:00",
    "1900-01-01T00:00:00",
    "",
    "x\0",
)

# What is long is made from its length: Hypothesis at times writes a strategy out, and warns where that is too long.
numbers = st.sampled_from(
    ("0", "-1", "1", "2.5", "1e9999", "-1e9999", "NaN", "Infinity", "9" * 18, "9" * 19, str(2**62))
) | st.sampled_from((400, 5000)).map(lambda digits: "9" * digits)
texts = (
    st.text(max_size=12)
    | st.sampled_from(("\0", "\u2028\u2029\x85", "\x1b]0;x\x07", "\x1b[31m", "\ud800", "\U0010ffff", "\x9b2J", "\r"))
    | st.just(5000).map(lambda length: "a" * length)
)
nested = st.builds(
    lambda opening, depth: opening * depth,
    st.sampled_from(("[", '{"a":', "(", "[[")),
    st.sampled_from((1, 900, 990, 3000)),
)
names = st.sampled_from(
    (
        *("event", "step", "steps", "total_steps", "epoch", "epochs", "loss", "stacks", "severity", "level"),
        *("model", "message"),
    )
)
values = (
    numbers
    | texts.map(json.dumps)
    | nested
    | st.sampled_from(("null", "true", "[1, 2]", '{"a": 1}', '"saved"', '"eval"'))
)
objects = st.lists(st.tuples(names, values), max_size=6).map(
    lambda fields: "{" + ", ".join(f'"{name}": {value}' for name, value in fields) + "}"
)
shapes = st.sampled_from(
    (
        "{0}/{1} ━━━━ 3s 12ms/step - loss: {2}",
        "Epoch {0}/{1}",
        "Epoch {0}: 45%|███  | {1}/{2} [00:03<00:04, 12.3it/s, loss={0}]",
        "Epoch [{0}/{1}], Step [{2}/{1}], Loss: {0}",
        "Train Epoch: {0} [{1}/{2} (1%)]\tLoss: {0}",
        "step {0} of {1} loss {2}",
        "{0}it [00:01, {1}it/s, loss={2}]",
        "Traceback (most recent call last):",
        '  File "{0}", line {1} in {2}',
        "ValueError: {0}",
        "    {0} ({1}:{2})",
        "E0000 00:00:00 {0}",
        "ERROR: {0}{1}{2}",
    )
)
filled = st.builds(lambda shape, parts: shape.format(*parts), shapes, st.tuples(*[numbers | texts] * 3))
lines = st.lists(texts | objects | nested | filled | st.builds("{}{}".format, objects, nested), min_size=1, max_size=6)

written = lines.map(lambda printed: "\n".join(printed).encode(errors="surrogatepass"))

CRASHES = (  # of earlier versions
    '{"event": ' + "[" * 3000,
    '{"severity": ' + "[" * 990 + "]" * 990 + "}",
    '{"event": "x", "step": ' + "9" * 5000 + "}",
    '{"step": 1' + "0" * 400 + ', "epoch": 1' + "0" * 400 + "}",
    '{"event": "progress", "epoch": 1.5, "epochs": 4611686018427387904, "loss": 1}',
    "Epoch 999999999999/999999999999, step 999999999999999999/999999999999999999, loss: 1",
    '{"event": "x", "a": "\u2028\x85\0"}',
)
any_line = settings(max_examples=150)


def entry(text: str, number: int = 0, time: str = TIMES[0], stream: Any = "stdout") -> LogEntry:
    return LogEntry(
        cursor=number + 1, run=1, task=TASK, number=number, time=time, stream=stream, severity="INFO", text=text
    )


@any_line
@given(lines)
@example(list(CRASHES))
def test_any_line_has_a_severity_and_progress_within_bounds(printed: list[str]) -> None:
    severities, reader, history = SeverityReader(), ProgressReader(), StepHistory()
    for number, text in enumerate(printed):
        assert severities.read("stderr" if number % 2 else "stdout", text) in SEVERITIES
        for event in (parse(text), reader.read(text, overwritten=bool(number % 2))):
            if event is None:
                continue
            history.add(event, NOON + timedelta(seconds=number))
            assert all(0 <= count <= MAX_STEP for count in (event.step, event.steps) if count is not None)
            assert all(isinstance(value, float) for value in event.metrics.values())
        assert ProgressReader.of(json.loads(json.dumps(reader.state()))) == reader


@any_line
@given(lines)
@example(list(CRASHES))
def test_any_line_has_a_cause_and_no_model_that_is_no_text(printed: list[str]) -> None:
    entries = [entry(text, number, stream="stderr" if number % 2 else "stdout") for number, text in enumerate(printed)]
    cause = Cause.of(entries, TASK)
    assert cause is None or not _has_control(cause.text)
    main_stack("Thread 1\n" + "\n".join(printed))
    assert isinstance(_reported_model(tuple(printed)), str)
    assert error_excerpt("\n".join(printed))


def test_line_that_looks_like_many_frames_takes_linear_time() -> None:
    assert main_stack("Thread 1\n    " + "f (a:1" * 50_000 + "\n    g (b.py:2)")[0].function == "g"


@contextmanager
def stores(directory: Path) -> Iterator[tuple[Store, LogStore]]:
    store = Store.at(directory, durable=False)
    try:
        yield store, LogStore(directory / "logs", durable=False)
    finally:
        store.close()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, LogStore]]:
    with stores(tmp_path_factory.mktemp("lines")) as both:
        yield both


def sent_batch(logs: LogStore, job: str) -> bytes:
    """All lines, as a reader of batches gets them."""
    arrays: list[list[Any]] = []
    last, more = 0, True
    while more:
        result = logs.read("p", job, after=last)
        arrays += result.arrays
        last, more = result.last, result.more
    return as_batch(arrays, last)


def _is_text(text: str) -> bool:
    """Whether a text can come from an agent: JSON of the wire has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@any_line
@given(printed=lines.map(lambda printed: [text for text in printed if _is_text(text)]), time=st.sampled_from(TIMES))
@example(printed=list(CRASHES), time=TIMES[1])
def test_any_line_is_stored_and_sent_as_it_is(stored: tuple[Store, LogStore], printed: list[str], time: str) -> None:
    store, logs = stored
    job = f"job{next(NUMBERS)}"
    sent = [LogLine(time=time, stream="stdout", text=text) for text in printed]
    logs.append("p", job, STREAM, 0, sent)
    entries = tuple(logs.entries("p", job))
    assert [one.text for one in entries] == printed
    for payload, text_of in ((as_events(entries), "text"), (sent_batch(logs, job), 7)):
        sent_text = payload.decode()
        data = [one.removeprefix("data: ") for one in sent_text.split("\n") if one.startswith("data: ")]
        events = [json.loads(one) for one in data]
        rows = [row for one in events for row in (one if isinstance(one, list) else [one])]
        assert [row[text_of] for row in rows] == printed
        assert not {"\u2028", "\u2029", "\x85"} & set(sent_text)
    as_text(logs.read("p", job).arrays).decode()
    for text in printed:
        logs.read("p", job, log_filter=LogFilter(search=text[:1000]))
    tracker = ProgressTracker(store, logs)
    tracker.add("run", TASK, 0, len(sent), sent)
    tracker.flush()
    values, _ = tracker.final_values("p", job, STREAM, "run", len(printed))
    if values["metrics"]:
        MetricsDigest.model_validate_json(json.dumps(values["metrics"], allow_nan=False))
    JobCurves("p", job).catch_up(logs)


@any_line
@given(lines, st.sampled_from(TIMES[:4]))
@example(list(CRASHES), TIMES[1])
def test_any_line_is_shown_on_a_terminal_without_its_control_characters(printed: list[str], time: str) -> None:
    log, layout, out = LiveLog(), Layout(Console()), io.StringIO()
    shown: list[str] = [local_time(time)]
    for number, text in enumerate(printed):
        one = entry(text, number, time)
        log.add(one, NOON)
        for screen in (PlainScreen(out, out), JsonScreen(out, out)):
            _ignoring_surrogates(screen.lines, one)
        shown += [without_control(text), without_control(event_text(text)), layout.raw_row(one).plain]
    rows = log.due(NOON + timedelta(seconds=HOLD_S)) + log.rest(NOON + timedelta(seconds=2 * HOLD_S))
    shown += [row.plain for line in rows for row in layout.rows(line, 80)]
    shown += [without_control(line.text) for line in rows if isinstance(line, TextLine)]
    log.state(NOON)
    assert not [text for text in shown if _has_control(text)]


def _ignoring_surrogates(print_lines: Callable[[Sequence[LogEntry]], None], one: LogEntry) -> None:
    """No server sends half a surrogate pair, and pydantic refuses to write it."""
    if _is_text(one.text):
        print_lines([one])


def _has_control(text: str) -> bool:
    rest = "".join(part.partition("m")[2] for part in ("m" + text).split("\x1b["))
    return any((ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160 for c in rest)


@any_line
@given(
    st.lists(
        st.binary(max_size=60) | lines.map(lambda some: "\n".join(some).encode(errors="surrogatepass")), max_size=5
    )
)
def test_any_bytes_are_lines_of_text(chunks: Sequence[bytes]) -> None:
    splitter, reader = LineSplitter(max_line=50, progress=20), LineReader()
    texts = [text for chunk in chunks for text, _ in splitter.feed(chunk)]
    texts += [text for text, _ in splitter.end()]
    frames = [b"\x01\0\0\0" + (31 + len(c)).to_bytes(4, "big") + b"2026-11-20T12:00:00.000000000Z " + c for c in chunks]
    records = [line for frame in frames for line in reader.feed(frame)] + reader.end()
    texts += [json.loads(record)["text"] for record in records]
    assert all(_is_text(text) and "\n" not in text for text in texts)
