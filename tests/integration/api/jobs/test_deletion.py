"""Deletion of jobs: everything goes but the name."""

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, ALICE, BOB, KEY, ScriptedAgent, Server, running_agent
from trainyard_protocol.views.usage import UsageBatch, UsageSample

pytestmark = on_every_database

JOB = "/trainyard/v1/projects/p/jobs/job"


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent whose job, the newest, has ended, with a log and usage."""
    agent = running_agent(api)
    run = agent.run
    sample = UsageSample(run_id=run.run_id, task="master-replica-0", time=api.clock(), cpu=1.0, memory_bytes=1, gpus=())
    api.use_cases.usage.record(UsageBatch(samples=(sample,)), KEY)
    agent.log('{"event": "progress", "step": 1, "loss": 0.5}')
    agent.exit()
    return agent


def files(api: Server) -> list[str]:
    root = api.use_cases.backend.settings.data_dir
    return sorted(str(path.relative_to(root)) for path in (*root.glob("logs/p/*"), *root.glob("usage/p/*")))


def test_deleted_job_is_gone_with_its_files_and_its_id_is_never_used_again(api: Server, agent: ScriptedAgent) -> None:
    assert files(api) == ["logs/p/job", "usage/p/job"]
    assert api.get(f"{JOB}/metrics")["names"] == ["loss"]
    answer = api.client.request("DELETE", JOB, headers=ADMIN)
    assert (answer.status_code, answer.json()) == (200, {})
    assert files(api) == []
    assert api.get("/v1/projects/p/jobs") == {}
    gone = api.client.get(JOB, headers=ADMIN)
    assert gone.status_code == 404
    assert gone.json()["error"]["message"].endswith(
        "The job projects/p/jobs/job was not found. It was deleted on 2026-11-20 by the admin."
    )
    assert api.client.request("DELETE", JOB, headers=ADMIN).status_code == 404
    body = {"jobId": "job", "trainingInput": {"pythonModule": "m"}}
    again = api.client.post("/v1/projects/p/jobs", json=body, headers=ADMIN)
    assert again.status_code == 409
    assert "A job with this id existed and was deleted. An id is never used again." in again.text
    assert api.get("/trainyard/v1/projects/p/jobs:suggest", like="job")["job_id"] == "job_2"


def test_service_goes_on_after_the_newest_job_was_deleted(api: Server, agent: ScriptedAgent) -> None:
    """The next job is another one, also where the database would use the key again."""
    api.client.request("DELETE", JOB, headers=ADMIN)
    api.tick()
    agent.sync()
    api.create("next", args=["--mine"])
    api.tick()
    agent.sync()
    assert agent.run.training_input.args == ("--mine",)
    assert api.get("/trainyard/v1/projects/p/jobs/next/metrics")["names"] == []
    agent.start()
    agent.exit()
    assert api.job("next")["state"] == "SUCCEEDED"
    assert files(api) == ["logs/p/next"]


def test_job_that_has_not_ended_or_is_anothers_is_not_deleted(api: Server) -> None:
    body = {"jobId": "job", "trainingInput": {"pythonModule": "m"}}
    api.client.post("/v1/projects/p/jobs", json=body, headers=ALICE)
    refused = api.client.request("DELETE", JOB, headers=ALICE)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "The job job is QUEUED. Only a job that has ended can be deleted: cancel it first."
    )
    api.cancel()
    assert api.client.request("DELETE", JOB, headers=BOB).status_code == 403
    assert api.job()["state"] == "CANCELLED"
    assert api.client.request("DELETE", JOB, headers=ALICE).status_code == 200
