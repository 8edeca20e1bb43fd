"""Runs and agents of a restored backup: what goes on, what is lost, and that nothing runs twice meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_cli.capabilities.backups.archive import receive
from trainyard_cli.capabilities.backups.restoring import restore
from trainyard_protocol.wire.sync import RunOrder
from trainyard_server.control.restoration import CALLS_AGAIN_S

CHIEF = "master-replica-0"
NOT_YET_S, LEASE_S = CALLS_AGAIN_S - 1, 600.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


def back_up(api: Server, file: Path) -> None:
    answer = api.client.post("/trainyard/v1/backups", headers=ADMIN)
    assert answer.status_code == 200, answer.text
    receive([answer.content], file, lambda _: None)


@contextmanager
def restored(tmp_path: Path, clock: Clock, file: Path, **changes: Any) -> Iterator[Server]:
    """The server on what was restored, an hour after the backup."""
    new = tmp_path / "new"
    clock.advance(3600)
    restore(file, new)
    with server(new / "server", clock, **changes) as api:
        yield api


def again(api: Server, agent: ScriptedAgent) -> ScriptedAgent:
    """The same agent, as it calls the restored server: it has what it had."""
    agent.server = api
    return agent


def another(api: Server, name: str) -> ScriptedAgent:
    """A new agent on a machine of that name."""
    agent = ScriptedAgent(api, name)
    agent.info = agent.info.model_copy(update={"agent_id": f"new-id-of-{name}"})
    return agent


def listed(api: Server) -> dict[str, dict[str, Any]]:
    return {agent["name"]: agent for agent in api.get("/trainyard/v1/status")["agents"]}


def ends(api: Server, job: str = "job") -> list[tuple[int, str]]:
    """The ended runs of a job: their numbers and why."""
    runs = sorted(api.detail(job)["runs"], key=lambda run: run["number"])
    return [(run["number"], run["verdict"]["reason"]) for run in runs if run["verdict"]]


def test_job_of_a_machine_that_is_gone_ends_in_a_new_run_that_costs_no_retry(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "b.tar.gz"
    with server(tmp_path / "state", clock) as api:
        old = running_agent(api)
        old_run = old.run
        old.log("step=1", run=old_run)
        api.create("queued")
        back_up(api, file)
    with restored(tmp_path, clock, file) as api:
        new = another(api, "laptop")
        new.sync()
        assert new.response.name == "laptop", "the name is free"
        api.tick()
        api.tick(NOT_YET_S)
        assert new.sync().runs == ()
        assert "run 1 continues if its agent still has it; otherwise a new run starts" in api.events()[-1]
        assert {name: agent["alive"] for name, agent in listed(api).items()} == {
            "laptop": True,
            "laptop-before-restore": False,
        }
        api.tick(2)
        new.sync()
        jobs = {run.job_id: run for run in new.runs.values()}
        assert {name: run.number for name, run in jobs.items()} == {"job": 2, "queued": 1}
        assert ends(api) == [(1, "RESTORED")]
        assert listed(api).keys() == {"laptop"}
        for run in jobs.values():
            new.start(run)
            new.exit(run=run)
        assert (api.job()["state"], api.job("queued")["state"]) == ("SUCCEEDED", "SUCCEEDED")
        assert ends(api) == [(1, "RESTORED"), (2, "COMPLETED")]
        assert any("A new run starts as soon as there is room for it." in event for event in api.events())
        again(api, old).sync()
        assert old.response.name == "laptop-2"
        assert old.runs == {}, "what it runs is over: it stops that"


def test_agent_that_calls_keeps_what_it_has_and_nothing_starts_beside_what_it_stops(
    tmp_path: Path, clock: Clock
) -> None:
    file = tmp_path / "b.tar.gz"
    with server(tmp_path / "state", clock) as api:
        agent = ScriptedAgent(api, cpus=4)
        agent.sync()
        for job in ("goes_on", "over"):
            api.create(job)
        api.create("later", masterType="local-4")
        api.tick()
        agent.sync()
        kept, over = sorted(agent.runs.values(), key=lambda run: run.job_id)
        for run in (kept, over):
            agent.start(run)
        back_up(api, file)
    with restored(tmp_path, clock, file) as api:
        unheard_of = kept.model_copy(update={"run_id": "of-later"})  # it was placed after the backup
        agent.replicas["of-later", CHIEF] = agent.replicas[kept.run_id, CHIEF]

        def sync(*runs: RunOrder) -> list[str]:
            """The jobs of its orders, to an agent that has these runs."""
            agent.runs = {run.run_id: run for run in runs}
            return sorted(run.job_id for run in agent.sync().runs)

        again(api, agent)
        assert sync(kept, unheard_of) == ["goes_on"]
        assert ends(api, "over") == [(1, "RESTORED")]
        api.tick()
        for _ in range(3):
            api.tick(NOT_YET_S)
            assert sync(kept, unheard_of) == ["goes_on"], "it has not stopped all yet"
        assert sync(kept) == ["goes_on", "over"]
        agent.exit(run=kept)
        assert (api.job("goes_on")["state"], ends(api, "goes_on")) == ("SUCCEEDED", [(1, "COMPLETED")])


@pytest.mark.parametrize("address", ["", "192.0.2.1:30600"])
def test_run_of_an_agent_with_a_lease_is_lost_after_that_or_when_an_operator_removes_the_agent(
    tmp_path: Path, clock: Clock, address: str
) -> None:
    """Agents that nobody can ask have long leases; so have others where the service has no other ones."""
    file, changes = tmp_path / "b.tar.gz", {"long_leases": bool(address)}
    with server(tmp_path / "state", clock, **changes) as api:
        agents = [ScriptedAgent(api, name) for name in ("one", "two")]
        for agent in agents:
            agent.info = agent.info.model_copy(update={"peer_address": address})
        for agent in agents * 2:
            agent.sync()
        for job in ("job_0", "job_1"):
            api.create(job, masterType="local-2")
        api.tick()
        for agent in agents:
            agent.sync()
            agent.start()
        back_up(api, file)
    with restored(tmp_path, clock, file, **changes) as api:
        new = another(api, "one")

        def wait(seconds: float) -> None:
            for _ in range(int(seconds / 20)):
                api.tick(20)
                new.sync()

        new.sync()
        wait(LEASE_S - 60)
        assert (ends(api, "job_0"), ends(api, "job_1"), new.runs) == ([], [], {})
        gone = listed(api)["one-before-restore"]
        assert gone["restored"]
        prefix = gone["agent_id"][:7]
        removed = api.client.request("DELETE", f"/trainyard/v1/agents/{prefix}", headers=ADMIN)
        assert removed.json()["agents"][0]["agent_id"] == "id-of-one", removed.text
        new.sync()
        assert len(new.runs) == 1
        new.start()
        new.exit()
        assert sorted(ends(api, "job_0") + ends(api, "job_1")) == [(1, "RESTORED"), (2, "COMPLETED")]
        wait(120)
        assert sorted(ends(api, "job_0") + ends(api, "job_1"))[:2] == [(1, "RESTORED"), (1, "RESTORED")]
        assert listed(api).keys() == {"one"}


def test_restored_directory_is_taken_over_once_whenever_the_server_is_killed(tmp_path: Path, clock: Clock) -> None:
    file, new = tmp_path / "b.tar.gz", tmp_path / "new"
    with server(tmp_path / "state", clock) as api:
        running_agent(api)
        back_up(api, file)
    restore(file, new)
    for _ in range(2):  # it ends before anything has called
        with server(new / "server", clock) as api:
            assert listed(api).keys() == {"laptop-before-restore"}
    with server(new / "server", clock) as api:
        agent = another(api, "laptop")
        agent.sync()
        api.tick()
        api.tick(CALLS_AGAIN_S + 1)
        agent.sync()
        assert agent.run.number == 2
    with server(new / "server", clock) as api:
        again(api, agent).sync()
        for _ in range(2):
            api.tick(CALLS_AGAIN_S + 1)
            agent.sync()
        assert agent.run.number == 2
        assert not (new / "server/restored.json").exists()
