"""The same data directory under a new server, as after `kill -9`."""

from pathlib import Path

from beds.databases import on_every_database
from integration.api.api_support import Clock, ScriptedAgent, Server, running_agent, server
from trainyard_server.storage.logs.store import SERVICE

pytestmark = on_every_database


def reconnected(agent: ScriptedAgent, api: Server) -> ScriptedAgent:
    agent.server = api
    agent.sync()
    return agent


def test_job_goes_on_under_a_new_server(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        agent = running_agent(api, workerType="local-1", workerCount=1)
        agent.log("one")
        before = api.stream()
    with server(tmp_path, clock) as api:
        assert reconnected(agent, api).run.target == "run"
        agent.log("two")
        agent.exit("master-replica-0")
        before_end = api.job()
    with server(tmp_path, clock) as api:
        assert api.job() == before_end
        assert reconnected(agent, api).run.target == "stop"
        agent.stopped("worker-replica-0")
        assert api.job()["state"] == "SUCCEEDED"
        after = api.stream()
    assert [e for e in after if e[0] == "log"][: len(before) - 2] == before[1:-1]
    master = [data["text"] for kind, data, _ in after if kind == "log" and data["task"] == "master-replica-0"]
    assert master == ["one", "two"]


def test_decision_that_died_before_it_was_applied_is_taken_by_the_next_tick(
    tmp_path: Path, clock: Clock
) -> None:
    with server(tmp_path, clock) as api:
        agent = running_agent(api)
        agent.log("one")
        api.use_cases.controller.advance = lambda key: None  # type: ignore[method-assign]
        agent.exit()
        assert api.job()["state"] == "RUNNING"
    with server(tmp_path, clock) as api:
        api.tick()
        assert api.job()["state"] == "SUCCEEDED"


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


def test_log_lines_that_are_sent_again_are_kept_once(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        agent = running_agent(api)
        agent.log("one", "two")
    log = tmp_path / "logs" / "p" / "job" / "segment"
    log.write_bytes(log.read_bytes()[:-5])  # the second line never reached the disk whole
    agent.shipped.clear()
    with server(tmp_path, clock) as api:
        reconnected(agent, api)
        assert agent.log("one", "two", "three").next == 3
        texts = [d["text"] for k, d, _ in api.stream(task="master-replica-0") if k == "log"]
        assert texts == ["one", "two", "three"]


def test_server_that_was_away_gives_its_agents_time_to_come_back(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        running_agent(api)
    clock.advance(3000)
    with server(tmp_path, clock) as api:
        api.tick()
        assert api.detail()["runs"][0]["replicas"][0]["state"] == "RUNNING"
        api.tick(31)
        assert api.detail()["runs"][0]["replicas"][0]["state"] == "UNKNOWN"
