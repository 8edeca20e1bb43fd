"""Reports of usage: what runs used, by project, user, month and label, and beyond the deletion of jobs."""

from datetime import timedelta
from typing import Any

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, ALICE, BOB, START, WITH_GPU, ScriptedAgent, Server, gpu_agent
from trainyard_server.capabilities.sharing.usage_recording import UsageRecording

USAGE = "/trainyard/v1/usage"


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    return gpu_agent(api)


def run(
    api: Server, agent: ScriptedAgent, job_id: str, who: dict[str, str], hours: float, code: int = 0, **given: Any
) -> None:
    """A job on one CPU, which ends after some hours."""
    api.create(job_id, who=who, labels={"team": job_id[0]}, **given)
    agent.begin(600)
    api.clock.advance(hours * 3600)
    agent.exit(code=code)
    agent.turn()


def rows(api: Server, *by: str, **params: str) -> dict[tuple[str, ...], tuple[Any, ...]]:
    report = api.get(USAGE, by=list(by), **params)
    names = ("runs", "failed_runs", "cpu_hours", "gpu_hours", "idle_gpu_hours", "mean_wait_s")
    return {tuple(row["keys"]): tuple(row[name] for name in names) for row in report["rows"]}


@on_every_database
def test_usage_is_added_up_and_survives_the_jobs(api: Server, agent: ScriptedAgent) -> None:
    run(api, agent, "a1", ALICE, 2)
    run(api, agent, "a2", ALICE, 1, code=3)
    run(api, agent, "b1", BOB, 3)
    expected = {("alice",): (2, 1, 3.0, 0.0, 0.0, 600.0), ("bob",): (1, 0, 3.0, 0.0, 0.0, 600.0)}
    assert not rows(api, "user")
    assert not api.use_cases.of(UsageRecording).step()
    assert rows(api, "user") == expected
    assert rows(api, "label:team") == {("a",): expected["alice",], ("b",): expected["bob",]}
    api.use_cases.of(UsageRecording).step()
    for job in ("a1", "a2"):
        api.delete_job(job)
    assert rows(api, "user") == expected, "each run is recorded once, and for good"
    run(api, agent, "b2", BOB, 1)
    api.delete_job("b2")
    assert rows(api, "user")["bob",][0] == 2, "a job is recorded before it is deleted"


def test_running_jobs_count_and_months_are_apart(api: Server, agent: ScriptedAgent) -> None:
    api.clock.now = START.replace(month=10, day=30)
    run(api, agent, "a1", ALICE, 1)
    api.use_cases.of(UsageRecording).step()
    api.clock.advance(timedelta(days=5).total_seconds())
    api.create("now")
    agent.begin()
    api.clock.advance(7200)
    assert rows(api, "month", since="2026-10") == {
        ("2026-10",): (1, 0, 1.0, 0.0, 0.0, 600.0),
        ("2026-11",): (1, 0, 2.0, 0.0, 0.0, 0.0),
    }
    assert list(rows(api, "project")) == [("p",)]
    assert rows(api, "project")["p",][:3] == (1, 0, 2.0), "by default this month"
    text = api.client.get(f"{USAGE}.csv", params={"by": ["month", "user"], "since": "2026-10"}, headers=ADMIN).text
    assert text.splitlines()[:2] == [
        "month,user,runs,failed_runs,cpu_hours,gpu_hours,idle_gpu_hours,mean_wait_s",
        "2026-10,alice,1,0,1.0,0.0,0.0,600.0",
    ]


def test_idle_gpus_are_counted(api: Server, agent: ScriptedAgent) -> None:
    api.create("gpu", **WITH_GPU)
    agent.begin()
    for minute in range(61):
        api.clock.advance(60)
        agent.use(gpu=0.9 if minute > 30 else 0.01)
    agent.exit()
    api.tick()
    api.use_cases.of(UsageRecording).step()
    ((_, _, cpu_hours, gpu_hours, idle, _),) = rows(api, "user").values()
    assert gpu_hours == pytest.approx(61 / 60, abs=0.01)
    assert idle == pytest.approx(0.5, abs=0.01)
    assert cpu_hours >= gpu_hours


def test_wrong_questions_are_refused(api: Server) -> None:
    for params in ({"by": ["owner"]}, {"since": "yesterday"}, {"since": "2026-11", "until": "2026-10"}):
        assert api.refusal("GET", USAGE, 400, params=params)["message"]
    assert api.client.get("/usage", params={"by": "label:team, month"}, headers=ADMIN).status_code == 200
