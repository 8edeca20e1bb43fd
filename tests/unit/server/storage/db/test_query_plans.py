"""Plans of the queries that run often or over many jobs: each uses an index, however many jobs there are.

SQLite plans without looking at the rows, so an empty database shows the plans of a full one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from trainyard_server.storage.db.queries import filters
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.db.tables import studies

FILTERS = (
    "",
    "state:RUNNING OR state:QUEUED",
    "state:FAILED",
    "NOT state:SUCCEEDED",
    "labels.team=vision",
    "labels.team:v* AND state:FAILED",
    "state:FAILED OR labels.pinned=yes",
    "owner=ada",
    "jobId:census*",
    "createTime<2026-01-01",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.at(tmp_path_factory.mktemp("plans"), durable=False)
    yield store
    store.close()


@contextmanager
def statements(store: Store) -> Iterator[list[tuple[str, object]]]:
    """The queries of the block with their parameters."""
    seen: list[tuple[str, object]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if statement.startswith("SELECT"):
            seen.append((statement, parameters))

    event.listen(store._engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(store._engine, "before_cursor_execute", note)


def plan(store: Store, query: Callable[[Reader], object]) -> tuple[int, list[str]]:
    """The number of queries, and the steps of their plans."""
    with store.read() as reader, statements(store) as seen:
        query(reader)
    steps = []
    with store.read() as reader:
        connection = reader.session.connection()
        for statement, parameters in seen:
            explained = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)  # type: ignore[arg-type]
            steps += [str(row[3]) for row in explained]
    return len(seen), steps


def scans(steps: list[str]) -> list[str]:
    """The steps that read a whole table of jobs or runs."""
    return [
        step
        for step in steps
        if step.startswith("SCAN") and step.split()[1] in ("jobs", "runs", "replicas", "job_labels", "events")
    ]


@pytest.mark.parametrize("text", FILTERS)
def test_page_of_a_list_is_read_in_its_order_from_an_index(store: Store, text: str) -> None:
    expression = filters.parse(text)

    def page(reader: Reader) -> object:
        labels = filters.labels_of(expression) if expression is not None else ()
        common = reader.common_labels(labels)
        condition = filters.to_sql(expression, common) if expression is not None else None
        return reader.jobs("p", condition, below=100, limit=20)

    queries, steps = plan(store, page)
    assert not scans(steps), steps
    assert any("USING COVERING INDEX ix_jobs_by_project_and" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps  # nothing is sorted
    assert queries <= 3  # the labels, the keys, the jobs


@pytest.mark.parametrize(
    "query",
    [
        Reader.unfinished,
        Reader.queued,
        Reader.live_runs,
        studies.unfinished,
        lambda reader: reader.removal_counts(None, "retention"),
        lambda reader: reader.queued_jobs("p", "ada", 10),
    ],
)
def test_what_has_not_ended_is_found_without_what_has(store: Store, query: Callable[[Reader], object]) -> None:
    _, steps = plan(store, query)
    assert not scans(steps), steps
