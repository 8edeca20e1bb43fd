"""The same data directory under a new server, as after `kill -9`."""

from pathlib import Path

from beds.databases import on_every_database
from integration.api.api_support import Clock, running_agent, server
from trainyard_server.storage.logs.store import SERVICE

pytestmark = on_every_database


def test_decision_that_died_before_it_was_applied_is_taken_by_the_next_tick(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        agent = running_agent(api)
        agent.log("one")
        api.use_cases.controller.advance = lambda key: None  # type: ignore[method-assign]
        agent.exit(code=3)  # why is looked for in its log, in a transaction of its own
        assert api.job()["state"] == "RUNNING"
    with server(tmp_path, clock) as api:
        api.tick()
        assert api.job()["state"] == "FAILED"


def test_service_lines_that_were_not_written_are_written_once(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        api.use_cases.controller.write_log_soon = lambda key: None  # type: ignore[method-assign]
        api.create()
        assert api.use_cases.backend.logs.counts("p", "job") == {}
    with server(tmp_path, clock) as api:
        for _ in range(3):
            api.tick()
            texts = [data["text"] for kind, data, _ in api.stream() if kind == "log"]
            assert texts == [event for event in api.events() if event]
        assert api.use_cases.backend.logs.counts("p", "job") == {SERVICE: len(texts)}


def test_server_that_was_away_gives_its_agents_time_to_come_back(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        running_agent(api)
    clock.advance(3000)
    with server(tmp_path, clock) as api:
        api.tick()
        assert api.detail()["runs"][0]["replicas"][0]["state"] == "RUNNING"
        api.tick(31)
        assert api.detail()["runs"][0]["replicas"][0]["state"] == "UNKNOWN"
