"""Preemption and drained agents in a server: when a run is stopped, where it goes on, and what was done again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, ALICE, BOB, Clock, ScriptedAgent, Server, server
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.wire.logs import LogChunk, LogLine
from trainyard_server.capabilities.preemption.preemption import Preemptions

FILE = """
projects: {p: {preemptible: true}}
preemption: {minRun: 10m, checkpointWait: 10m}
"""


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text(FILE)
    with server(tmp_path / "server", clock, quotas=quotas) as api:
        yield api


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    agent = ScriptedAgent(api, cpus=2)
    agent.sync()
    return agent


def submit(api: Server, job_id: str, who: dict[str, str] = ALICE, **scheduling: Any) -> None:
    assert api.submit(job_id, who, masterType="local-2", scheduling=scheduling).status_code == 200


def later(agent: ScriptedAgent, seconds: float = 0) -> str:
    """Time passes, in which the agent has called. Returns what it is to do with its run."""
    api = agent.server
    api.clock.advance(seconds)
    agent.sync()
    api.use_cases.controller.flush_progress()
    api.tick()
    api.use_cases.of(Preemptions).step()
    agent.sync()
    return agent.run.target if agent.runs else ""


def step(agent: ScriptedAgent, number: int, event: str = "progress") -> None:
    """The program reports a step now."""
    text = json.dumps({"event": event, "step": number})
    key = agent.run.run_id, "master-replica-0"
    line = LogLine.parse({"time": rfc3339(agent.server.clock()), "stream": "stdout", "text": text})
    agent.shipped[key] = agent.ship(key[1], LogChunk.of(agent.shipped.get(key, 0), (line,)), agent.run).next


def start(agent: ScriptedAgent, saves_after: float) -> None:
    """A batch run, which saves after so many seconds."""
    submit(agent.server, "batch", band="batch")
    agent.begin()
    later(agent, saves_after)
    step(agent, 1000, "checkpoint")
    later(agent)


def ends(agent: ScriptedAgent) -> None:
    agent.stopped("master-replica-0")
    for _ in range(3):
        later(agent)


def states(api: Server, *jobs: str) -> list[str]:
    return [str(api.job(job)["state"]) for job in jobs]


def test_run_without_checkpoints_gives_way_at_once_and_goes_on_at_no_cost(api: Server, agent: ScriptedAgent) -> None:
    submit(api, "batch", band="batch")
    agent.begin()
    submit(api, "normal", BOB)
    targets = [later(agent, seconds) for seconds in (300, 400)]
    assert targets == ["run", "stop"], "not within its first ten minutes"
    assert states(api, "normal") == ["QUEUED"]
    ends(agent)
    assert states(api, "batch", "normal") == ["QUEUED", "PREPARING"]
    events = "\n".join(api.events("batch"))
    assert "Preempted for the job normal of p, of the band normal." in events
    assert "A new run starts as soon as there is room for it." in events, "at no cost to its retries"
    agent.start()
    agent.exit()
    for _ in range(3):
        later(agent)
    assert states(api, "batch") == ["PREPARING"], "it goes on"


@on_every_database
def test_run_that_saves_is_stopped_after_its_next_checkpoint_and_says_where_it_continues(
    api: Server, agent: ScriptedAgent
) -> None:
    start(agent, saves_after=600)
    assert later(agent, 100) == "run"
    submit(api, "urgent", BOB)
    assert [later(agent), later(agent, 500)] == ["run", "run"], "it has not saved since"
    step(agent, 1480, "checkpoint")
    step(agent, 1483)
    assert later(agent, 30) == "stop"
    ends(agent)
    agent.start()
    agent.exit()
    for _ in range(3):
        later(agent)
    agent.start()
    step(agent, 1481)
    later(agent)
    messages, why = api.events("batch"), "Preempted for the job urgent of p, of the band normal."
    assert messages.count(f"Run 1 is stopped once it has saved a checkpoint, in 10m 00s at the latest. {why}") == 1
    continued = "Run 2 continues at step 1,480: 3 steps are done again."
    assert messages.count(continued) == 1
    assert api.texts("batch", task="service").count(continued) == 1
    assert api.detail("batch")["lost"] == [{"cause": "preemption", "steps": 3, "seconds": 60.0, "unit": "CPU"}]
    page = api.client.get("/projects/p/jobs/batch", headers=ADMIN).text
    assert "3 steps, 60 CPU-seconds" in page


def test_run_that_does_not_save_in_time_is_stopped_and_one_that_nobody_waits_for_goes_on(
    api: Server, agent: ScriptedAgent
) -> None:
    start(agent, saves_after=600)
    submit(api, "urgent", BOB)
    later(agent, 100)
    api.cancel("urgent")
    assert [later(agent), later(agent, 300)] == ["run", "run"]
    assert api.events("batch")[-1] == "Run 1 goes on: its room is not needed any more."
    submit(api, "again", BOB)
    assert [later(agent), later(agent, 590), later(agent, 20)] == ["run", "run", "stop"]


def test_job_without_retries_is_never_preempted(api: Server, agent: ScriptedAgent) -> None:
    submit(api, "batch", band="batch", disableRetries=True)
    agent.begin()
    submit(api, "urgent", BOB)
    assert later(agent, 7000) == "run"


def test_evicted_agent_is_left_by_its_runs_once_they_have_saved(api: Server) -> None:
    agent, other = ScriptedAgent(api, cpus=2), ScriptedAgent(api, "other", cpus=2)
    agent.sync()
    submit(api, "job")
    agent.begin()
    later(agent, 60)
    step(agent, 7, "checkpoint")
    later(agent)
    other.sync()
    path = "/trainyard/v1/agents/laptop"
    evicted = api.done("POST", f"{path}:evict")
    assert evicted == {"agents": [{"agent_id": "id-of-laptop", "name": "laptop", "runs": 1}]}
    assert later(agent, 10) == "run"
    api.done("PATCH", path, json={"draining": False})
    assert later(agent, 20) == "run", "it is not drained any more"
    api.done("POST", f"{path}:evict")
    step(agent, 9, "checkpoint")
    assert later(agent, 10) == "stop"
    ends(agent)
    other.sync()
    assert other.run.job_id == "job"
    other.start()
    step(other, 10)
    later(other)
    assert api.detail()["runs"][0]["verdict"]["reason"] == "DRAINED"
    assert api.events()[-1] == "Run 2 continues at step 9: no step is done again."
    assert api.detail()["lost"] == []
