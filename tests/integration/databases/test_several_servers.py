"""Several server processes on one PostgreSQL database and one data directory: whichever is asked, all is one."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from beds import databases, live_rows
from integration.api.api_support import (
    ADMIN,
    AGENT,
    TOKENS,
    Clock,
    ScriptedAgent,
    Server,
    eventually,
    running_agent,
    server,
    serving,
    settings,
)
from support.addresses import free_ports
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.states import FINAL_JOB_STATES, ReplicaState
from trainyard_protocol.wire.attachments import ENDED, REFUSED
from trainyard_protocol.wire.sync import SyncRequest, SyncResponse
from trainyard_server.app import create_app
from trainyard_server.control.leader_election import LEASE, LeaderElection
from trainyard_server.domain.access.sessions import cookie_name
from trainyard_server.storage.db.repository import Event
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.events.postgres import PostgresNotifications

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def on_postgresql(postgresql: databases.PostgreSQL) -> Iterator[None]:
    with databases.use(postgresql):
        yield


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    clock = Clock()
    with server(tmp_path, clock) as one, server(tmp_path, clock) as other:
        yield one, other


def test_job_goes_through_both_servers_call_by_call(pair: tuple[Server, Server]) -> None:
    one, other = pair
    agents = ScriptedAgent(one), ScriptedAgent(other)
    agents[1].runs, agents[1].replicas, agents[1].shipped = (agents[0].runs, agents[0].replicas, agents[0].shipped)
    one.create()
    agents[0].sync()
    other.tick()
    agents[1].sync()
    run = agents[1].run
    agents[1].runs = agents[0].runs = {run.run_id: run}
    agents[0].start(run)
    for number in range(6):
        agents[number % 2].log(f"line {number}", run=run)
    agents[1].exit(run=run)
    one.tick()
    assert one.job() == other.job()
    assert one.job()["state"] == "SUCCEEDED"
    assert one.stream() == other.stream()
    lines = [data["text"] for kind, data, _ in one.stream(task="master-replica-0") if kind == "log"]
    assert lines == [f"line {number}" for number in range(6)]
    service = [data["text"] for kind, data, _ in one.stream(task="service") if kind == "log"]
    assert service == one.events(), "each of the service's lines once"


def test_command_at_one_server_meets_its_agent_at_the_other(tmp_path: Path) -> None:
    """The server that has it is reached through the other one, by both ends; once it is gone, that is said."""
    ports = free_ports(2)
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(server(tmp_path, Clock(), peer_url=f"http://127.0.0.1:{port}", one_user=True))
            for port in ports
        )
        agent = running_agent(one)
        home = ExitStack()
        for app, port, owner in ((one.app, ports[0], home), (other.app, ports[1], stack)):
            owner.enter_context(serving(app, port))
        path = "/trainyard/v1/projects/p/jobs/job/attachments"
        first, second = (one.client.post(path, json={"command": ["sh"]}, headers=ADMIN).json()["id"] for _ in range(2))

        def stream(area: str, who: dict[str, str], attachment_id: str) -> ClientConnection:
            url = f"ws://127.0.0.1:{ports[1]}/{area}/v1/attachments/{attachment_id}/streams/0"
            return stack.enter_context(connect(url, additional_headers=who, proxy=None))

        client = stream("trainyard", ADMIN, first)
        eventually(lambda: [order.id for order in agent.sync().attachments] == [first])
        served = stream("agent", AGENT, first)
        client.send(b"\0typed")
        assert served.recv(PATIENCE_S) == b"\0typed"
        served.send(b"\1shown")
        assert client.recv(PATIENCE_S) == b"\1shown"
        served.close(ENDED)
        with pytest.raises(ConnectionClosed):
            client.recv(PATIENCE_S)
        assert client.close_code == ENDED
        home.close()
        lost = stream("trainyard", ADMIN, second)
        with pytest.raises(ConnectionClosed):
            lost.recv(PATIENCE_S)
        assert (lost.close_code, "--peer-url" in str(lost.close_reason)) == (REFUSED, True)


def test_news_of_one_server_wakes_those_who_wait_at_the_other(tmp_path: Path) -> None:
    """An agent's held sync at one, a cancellation and log lines at the other."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(server(tmp_path, Clock())) for _ in range(2))
        here, there = (
            httpx.Client(base_url=stack.enter_context(serving(s.app)), timeout=PATIENCE_S) for s in (one, other)
        )
        stack.enter_context(here)
        stack.enter_context(there)
        agent = running_agent(one)
        seen = agent.sync()

        def held() -> SyncResponse:
            request = SyncRequest(agent=agent.info, runs=agent.reports(), seen=seen.version, wait_s=25)
            answer = there.post("/agent/v1/sync", content=request.model_dump_json(), headers=AGENT)
            return SyncResponse.model_validate_json(answer.raise_for_status().content)

        def follow() -> list[str]:
            path = "/trainyard/v1/projects/p/jobs/job/logs"
            texts: list[str] = []
            query = {"task": "master-replica-0", "follow": "true"}
            with there.stream("GET", path, params=query, headers=ADMIN) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data: ") and '"cursor"' in line:
                        texts.append(json.loads(line.removeprefix("data: "))["text"])
                    if "second" in texts:
                        break
            return texts

        began = time.monotonic()
        answer, texts = _Later(held), _Later(follow)
        agent.log("first")
        agent.log("second")
        assert texts.result() == ["first", "second"]
        one.cancel()
        assert answer.result().runs[0].target == "stop"
        assert time.monotonic() - began < 20, "it was woken, and did not just end its wait"


def test_session_that_is_ended_at_one_is_over_at_the_other_with_its_streams(pair: tuple[Server, Server]) -> None:
    one, other = pair
    session = one.use_cases.sessions.open(TOKENS[0].credential, one.clock())
    with serving(other.app) as url:
        cookie = {"Cookie": f"{cookie_name('http', url.removeprefix('http://'))}={session.value}"}
        with httpx.stream("GET", f"{url}/live/", headers=cookie, trust_env=False, timeout=PATIENCE_S) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: hello"
            one.use_cases.revoked_sessions.revoke(session)
            assert httpx.get(f"{url}/trainyard/v1/me", headers=cookie, trust_env=False, timeout=60).status_code == 401
            assert list(lines)[-3:] == ["event: over", "data:", ""]


def test_bus_carries_more_topics_than_fit_one_message_and_survives_its_connection(database: str) -> None:
    here, there = Notifier(), Notifier()
    buses = PostgresNotifications(database, here), PostgresNotifications(database, there)
    reported: set[str] = set()
    there.deliver = lambda *topics: reported.update(topics)  # type: ignore[method-assign]

    def arrives(topic: str) -> bool:
        here.publish(topic)
        return topic in reported

    for bus in buses:
        bus.start()
    try:
        topics = {f"job:{number}" for number in range(5000)}
        eventually(partial(arrives, "ready"))
        here.publish(*topics)
        eventually(lambda: topics <= reported, PATIENCE_S)
        store = Store(database)
        with store.write() as writer:
            writer._session.connection().exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        store.close()
        reported.clear()
        eventually(partial(arrives, "again"), PATIENCE_S)
    finally:
        for bus in buses:
            bus.close()


def test_transaction_of_each_server_sees_what_the_others_have_written(pair: tuple[Server, Server]) -> None:
    """Random calls at either server. Before it decides, each has in memory what a fresh load of the database has."""
    random = Random(7504)
    agents = ScriptedAgent(pair[0]), ScriptedAgent(pair[1])
    agents[1].runs, agents[1].replicas, agents[1].shipped = agents[0].runs, agents[0].replicas, agents[0].shipped
    names: list[str] = []
    for number in range(60):
        at = random.randrange(2)
        api, agent = pair[at], agents[at]
        match random.choice(["create", "turn", "turn", "work", "work", "cancel", "event", "delete"]):
            case "create":
                names.append(f"job{number}")
                api.create(names[-1])
            case "turn":
                agent.turn(1)
            case "work":
                for run in list(agent.runs.values())[:1]:
                    state = agent.replicas[run.run_id, "master-replica-0"].state
                    if state is ReplicaState.RUNNING:
                        agent.exit(run=run, code=random.choice([0, 1]))
                    elif state is ReplicaState.PENDING:
                        agent.start(run)
            case "cancel" if names:
                api.cancel(random.choice(names))
            case "event":
                with api.use_cases.backend.store.write() as writer:
                    for job in writer.unfinished()[:1]:
                        writer.add_event(job.key, Event("log-damaged", "a line"), api.clock())
            case "delete":
                ended = [name for name in names if api.job(name)["state"] in FINAL_JOB_STATES]
                for name in ended[:1]:
                    api.delete_job(name)
                    names.remove(name)
        agents[1 - at].runs = agent.runs
        for server_ in pair:
            store = server_.use_cases.backend.store
            with store.write():
                assert live_rows.differences(store) == []
    assert len({api.job(name)["state"] for name in names for api in pair}) > 1


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

    def test_other_follows_when_the_first_is_silent_for_the_lease(self, stores: list[Store]) -> None:
        clock = Clock()
        one, other = (LeaderElection(store, clock.stopwatch, ttl_s=15) for store in stores)
        assert one.held()
        assert not other.held()
        clock.advance(14)
        assert not other.held()
        clock.advance(1)
        assert other.held()
        assert not one.held(), "it finds that it has lost it"

    def test_two_that_want_it_at_once_do_not_both_get_it(self, stores: list[Store]) -> None:
        for _ in range(10):
            leaderships = [LeaderElection(store, Clock().stopwatch, ttl_s=15) for store in stores]
            held = [later.result() for later in [_Later(leadership.held) for leadership in leaderships]]
            assert sorted(held) == [False, True]
            for leadership in leaderships:
                leadership.release()

    def test_one_that_is_released_is_taken_at_once(self, stores: list[Store]) -> None:
        one, other = (LeaderElection(store, Clock().stopwatch, ttl_s=15) for store in stores)
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
