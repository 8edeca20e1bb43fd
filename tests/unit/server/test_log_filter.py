"""Filters over a log: what comes through is what a reader without a filter would choose, and nothing takes long."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.sync import LogLine
from trainyard_protocol.views import SEVERITIES, LogEntry
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter, parse_filter
from trainyard_server.storage.logs.store import LogStore, Stream
from unit.server.test_log_store import MASTER, WORKER, everything

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

TEXTS = (
    "plain",
    "Needle in capitals: NEEDLE",
    'a quoted "needle", with \\ and \t',
    "ERROR:root:it broke",
    "WARNING stream: stdout",
    "NOTICE me",
    '{"severity": "warning", "message": "needle"}',
    '{"severity": "Critical"}',
    '{"severity": "\\u0057arning"}',
    '{"severity": "debug"}',
    "DEBUG details",
    "W1120 12:00:00.1 absl.py] careful",
    "E1120 12:00:00.1 absl.py] worse",
    "no error here, only the word",
    '"stream": "stdout"',
    "straße und STRASSE",
    "K is Kelvin's sign",
    "ünïcode ÜNÏCODE",
    "\0 NUL, \x1b[31mred\x1b[0m, 50%\r100%",
    "\ufffd was no UTF-8",
    "",
)


AGAIN = Stream(2, WORKER.task)


def backwards(store: LogStore, asked: LogFilter, lines: int) -> list[LogEntry]:
    """Everything, read from the end on."""
    found: list[LogEntry] = []
    before = None
    while before is None or before > 1:
        page = store.read_back("p", "j", before, asked, max_lines=lines)
        assert len(page.entries) <= lines
        assert page.first < (before or page.last + 2), "it goes on"
        assert before is None or page.last == before - 1
        found = [*page.entries, *found]
        before = page.first
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LogStore:
    """Lines of two replicas and two runs, nearly in the order of time."""
    store, dice = LogStore(tmp_path_factory.mktemp("logs")), random.Random(3)
    have = {MASTER: 0, WORKER: 0, AGAIN: 0}
    for number in range(200):
        stream = dice.choice([MASTER, WORKER, AGAIN])
        moment = NOON + timedelta(seconds=number - dice.randint(0, 30), microseconds=dice.choice([0, 5]))
        time = rfc3339(moment) if dice.random() < 0.9 else moment.isoformat(timespec="milliseconds")
        line = LogLine(
            time=time,
            stream=dice.choice(["stdout", "stdout", "stderr"]),
            text=dice.choice(TEXTS),
            partial=dice.random() < 0.1,
        )
        have[stream] = store.append("p", "j", stream, have[stream], [line]).next
    return store


def wanted(entry: LogEntry, asked: LogFilter) -> bool:
    """The definition, with nothing clever in it."""
    return (
        (not asked.tasks or entry.task in asked.tasks)
        and (asked.run is None or entry.run == asked.run)
        and (not asked.severity or SEVERITIES.index(entry.severity) >= SEVERITIES.index(asked.severity))
        and (asked.since is None or datetime.fromisoformat(entry.time) >= asked.since)
        and asked.search.casefold() in entry.text.casefold()
    )


@pytest.mark.parametrize(
    ("tasks", "since", "run"),
    [
        (set(), None, None),
        (set(), None, 2),
        ({WORKER.task}, NOON + timedelta(seconds=60), None),
        ({WORKER.task, MASTER.task}, None, 1),
    ],
)
@pytest.mark.parametrize("severity", ["", *SEVERITIES])
@pytest.mark.parametrize(
    "search",
    ["", "needle", "NEEDLE", '"needle"', "\\", "\t", "strasse", "k", "Ü", "\0", "\r", "text", "\ufffd"],
)
def test_filter_is_what_its_definition_says(
    store: LogStore, tasks: set[str], severity: str, since: datetime | None, search: str, run: int | None
) -> None:
    asked = LogFilter(frozenset(tasks), severity, since, search, run)
    chosen = [entry for entry in everything(store) if wanted(entry, asked)]
    assert everything(store, wanted=asked) == chosen
    assert everything(store, wanted=asked, max_lines=7) == chosen
    assert backwards(store, asked, 7) == backwards(store, asked, 500) == chosen
    if chosen:
        middle = chosen[len(chosen) // 2].cursor
        rest = store.read("p", "j", middle, wanted=asked)
        assert list(rest.entries) == [entry for entry in chosen if entry.cursor > middle]


def test_filter_that_finds_nothing_looks_at_a_bounded_number_of_lines_at_a_time(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    line = LogLine(time="2026-11-20T12:00:00Z", stream="stdout", text="x" * 20)
    for start in range(0, 50_000, 5000):
        store.append("p", "j", MASTER, start, [line] * 5000)
    after, reads = 0, 0
    while True:
        batch = store.read("p", "j", after, LogFilter(search="needle"))
        assert batch.entries == ()
        assert batch.cursor - after <= 20_000
        after, reads = batch.cursor, reads + 1
        if not batch.more:
            break
    assert (after, reads) == (50_000, 3)
    long = line.model_copy(update={"text": "y" * 2**20})
    store.append("p", "j", WORKER, 0, [long] * 12)
    assert store.read("p", "j", after, LogFilter(search="needle")).cursor - after <= 5
    back = store.read_back("p", "j", None, LogFilter(search="needle"))
    assert (back.entries, back.last) == ((), 50_012)
    assert back.last - back.first < 5, "megabytes"
    back = store.read_back("p", "j", 50_001, LogFilter(search="needle"))
    assert (back.entries, back.first, back.last) == ((), 30_001, 50_000)


def test_read_goes_no_further_than_it_was_told(store: LogStore) -> None:
    assert [entry.cursor for entry in store.read("p", "j", 5, until=9).entries] == [6, 7, 8, 9]
    assert store.read("p", "j", 5, until=9).more is False


def test_filter_of_a_request_is_read_with_everything_that_is_wrong() -> None:
    asked = parse_filter(["worker-replica-0", ""], "warning", "10m", "x", NOON, 2)
    tasks = frozenset({"worker-replica-0"})
    assert asked == LogFilter(tasks, "WARNING", NOON - timedelta(minutes=10), "x", 2)
    assert parse_filter(["service"], "", "2026-11-20T13:00:00+01:00", "", NOON).since == NOON
    assert parse_filter([], "", "", "", NOON) == EVERYTHING
    with pytest.raises(InvalidArgument) as caught:
        parse_filter(["service", "nobody"], "LOUD", "yesterday", "x" * 1001, NOON)
    assert [violation.field for violation in caught.value.violations] == [
        "task",
        "severity",
        "since",
        "search",
    ]
    assert "10m" in caught.value.message


@pytest.mark.parametrize("since", ["10", "10y", "-5m", "999999999d", "2026-13-01T00:00:00Z", "m", "1.5h"])
def test_time_that_is_none_is_refused(since: str) -> None:
    with pytest.raises(InvalidArgument, match="since"):
        parse_filter([], "", since, "", NOON)
