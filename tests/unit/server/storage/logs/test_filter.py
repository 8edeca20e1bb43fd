"""Filters of a log: a filtered read gives what the filter chooses of all lines, with a bounded amount of work."""

import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.lines.severity import SEVERITIES
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter, parse_filter
from trainyard_server.storage.logs.store import LogStore, Stream
from unit.server.storage.logs.test_store import MASTER, WORKER, everything

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


def backwards(store: LogStore, log_filter: LogFilter, lines: int) -> list[LogEntry]:
    """All lines that pass, read from the end."""
    entries: list[LogEntry] = []
    before = None
    while before is None or before > 1:
        page = store.read_back("p", "j", before, log_filter, max_lines=lines)
        assert len(page.entries) <= lines
        assert page.first < (before or page.last + 2), "it goes on"
        assert before is None or page.last == before - 1
        entries = [*page.entries, *entries]
        before = page.first
    return entries


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LogStore:
    """Lines of two replicas and two runs, nearly in the order of time."""
    store, dice = LogStore(tmp_path_factory.mktemp("logs")), random.Random(3)
    have = {MASTER: 0, WORKER: 0, AGAIN: 0}
    for number in range(200):
        stream = dice.choice([MASTER, WORKER, AGAIN])
        at = NOON + timedelta(seconds=number - dice.randint(0, 30), microseconds=dice.choice([0, 5]))
        time = rfc3339(at) if dice.random() < 0.9 else at.isoformat(timespec="milliseconds")
        line = LogLine(
            time=time,
            stream=dice.choice(["stdout", "stdout", "stderr"]),
            text=dice.choice(TEXTS),
            partial=dice.random() < 0.1,
        )
        have[stream] = store.append("p", "j", stream, have[stream], [line]).next
    return store


def passes(entry: LogEntry, log_filter: LogFilter) -> bool:
    """The definition of the filters, without an index."""
    return (
        (not log_filter.tasks or entry.task in log_filter.tasks)
        and (log_filter.run is None or entry.run == log_filter.run)
        and (not log_filter.severity or SEVERITIES.index(entry.severity) >= SEVERITIES.index(log_filter.severity))
        and (log_filter.since is None or datetime.fromisoformat(entry.time) >= log_filter.since)
        and log_filter.search.casefold() in entry.text.casefold()
    )


REPLICAS: list[tuple[set[str], datetime | None, int | None]] = [
    (set(), None, None),
    (set(), None, 2),
    ({WORKER.task}, NOON + timedelta(seconds=60), None),
    ({WORKER.task, MASTER.task}, None, 1),
]
SEARCHES = ["", "needle", "NEEDLE", '"needle"', "\\", "\t", "strasse", "k", "Ü", "\0", "\r", "text", "\ufffd"]
FILTERS = [
    LogFilter(frozenset(tasks), severity, since, search, run)
    for (tasks, since, run), severity, search in itertools.product(REPLICAS, ["", "WARNING", "ERROR"], SEARCHES)
]


def test_filter_is_what_its_definition_says(store: LogStore) -> None:
    entries = everything(store)
    wrong = [log_filter for log_filter in FILTERS if not reads_agree(store, log_filter, entries)]
    assert not wrong, "\n".join(map(str, wrong))


def reads_agree(store: LogStore, log_filter: LogFilter, entries: list[LogEntry]) -> bool:
    """Whether every way to read with this filter gives the entries that match its definition."""
    chosen = [entry for entry in entries if passes(entry, log_filter)]
    after = chosen[len(chosen) // 2].cursor if chosen else 0
    return chosen == everything(store, log_filter=log_filter) == everything(
        store, log_filter=log_filter, max_lines=7
    ) == backwards(store, log_filter, 7) == backwards(store, log_filter, 500) and [
        entry for entry in chosen if entry.cursor > after
    ] == list(store.read("p", "j", after, log_filter=log_filter).entries)


def test_filter_of_a_request_is_parsed_with_all_violations() -> None:
    log_filter = parse_filter(["worker-replica-0", ""], "warning", "10m", "x", NOON, 2)
    tasks = frozenset({"worker-replica-0"})
    assert log_filter == LogFilter(tasks, "WARNING", NOON - timedelta(minutes=10), "x", 2)
    assert parse_filter(["service"], "", "2026-11-20T13:00:00+01:00", "", NOON).since == NOON
    assert parse_filter([], "", "", "", NOON) == EVERYTHING
    with pytest.raises(InvalidArgument) as caught:
        parse_filter(["service", "nobody"], "LOUD", "yesterday", "x" * 1001, NOON)
    assert [violation.field for violation in caught.value.violations] == ["task", "severity", "since", "search"]
    assert "10m" in caught.value.message
