"""Several server processes on one PostgreSQL database and one data directory: whichever is asked, all is one."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import databases
from integration.api.api_support import (
    Clock,
    eventually,
    settings,
)
from trainyard_protocol.errors import FailedPrecondition
from trainyard_server.app import create_app
from trainyard_server.bus import Bus
from trainyard_server.leadership import LEASE, Leadership
from trainyard_server.notify import Notifier
from trainyard_server.store import Store

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def on_postgresql(postgresql: databases.PostgreSQL) -> Iterator[None]:
    with databases.use(postgresql):
        yield


def test_bus_carries_more_topics_than_fit_one_message_and_survives_its_connection(database: str) -> None:
    here, there = Notifier(), Notifier()
    buses = Bus(database, here), Bus(database, there)
    told: set[str] = set()
    there.deliver = lambda *topics: told.update(topics)  # type: ignore[method-assign]
    for bus in buses:
        bus.start()
    try:
        topics = {f"job:{number}" for number in range(5000)}
        eventually(lambda: here.publish("ready") or "ready" in told)
        here.publish(*topics)
        eventually(lambda: topics <= told, PATIENCE_S)
        store = Store(database)
        with store.write() as writer:
            writer._session.connection().exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        store.close()
        told.clear()
        eventually(lambda: here.publish("again") or "again" in told, PATIENCE_S)
    finally:
        for bus in buses:
            bus.close()


def test_server_on_another_data_directory_is_refused(tmp_path: Path, database: str) -> None:
    create_app(settings(tmp_path / "one", database=database)).state.use_cases.backend.store.close()
    with pytest.raises(FailedPrecondition, match="share one data directory"):
        create_app(settings(tmp_path / "two", database=database))
    create_app(settings(tmp_path / "one", database=database)).state.use_cases.backend.store.close()


class TestLeadership:
    @pytest.fixture
    def stores(self, database: str) -> Iterator[list[Store]]:
        stores = [Store(database), Store(database)]
        yield stores
        for store in stores:
            store.close()

    def test_one_of_two_leads(self, stores: list[Store]) -> None:
        clock = Clock()
        one, other = (Leadership(store, clock.stopwatch, ttl_s=15) for store in stores)
        assert one.held()
        for _ in range(100):
            clock.advance(1)
            assert one.held()
            assert not other.held()

    def test_other_follows_when_the_first_is_silent_for_the_lease(self, stores: list[Store]) -> None:
        clock = Clock()
        one, other = (Leadership(store, clock.stopwatch, ttl_s=15) for store in stores)
        assert one.held()
        assert not other.held()
        clock.advance(14)
        assert not other.held()
        clock.advance(1)
        assert other.held()
        assert not one.held(), "it finds that it has lost it"

    def test_two_that_want_it_at_once_do_not_both_get_it(self, stores: list[Store]) -> None:
        for _ in range(10):
            leaderships = [Leadership(store, Clock().stopwatch, ttl_s=15) for store in stores]
            held = [later.result() for later in [_Later(leadership.held) for leadership in leaderships]]
            assert sorted(held) == [False, True]
            for leadership in leaderships:
                leadership.release()

    def test_one_that_is_released_is_taken_at_once(self, stores: list[Store]) -> None:
        one, other = (Leadership(store, Clock().stopwatch, ttl_s=15) for store in stores)
        assert one.held()
        assert not other.held()
        one.release()
        assert other.held()
        with stores[0].read() as reader:
            lease = reader.lease(LEASE)
        assert lease is not None
        assert lease.holder == other.name


class _Later:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._outcome.append(call()), daemon=True)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(2 * PATIENCE_S)
        assert self._outcome, "it did not come back"
        return self._outcome[0]
