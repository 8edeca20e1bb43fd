"""Deletion of jobs: everything goes but the name."""

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ALICE, BOB, ScriptedAgent, Server, running_agent

JOB = "/trainyard/v1/projects/p/jobs/job"


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent whose job, the newest, has ended, with a log and usage."""
    agent = running_agent(api)
    agent.use()
    agent.log('{"event": "progress", "step": 1, "loss": 0.5}')
    agent.exit()
    return agent


def files(api: Server) -> list[str]:
    root = api.use_cases.backend.settings.data_dir
    return sorted(str(path.relative_to(root)) for path in (*root.glob("logs/p/*"), *root.glob("usage/p/*")))


@on_every_database
def test_deleted_job_is_gone_with_its_files_and_its_id_is_never_used_again(api: Server, agent: ScriptedAgent) -> None:
    assert files(api) == ["logs/p/job", "usage/p/job"]
    assert api.get(f"{JOB}/metrics")["names"] == ["loss"]
    assert api.done("DELETE", JOB) == {}
    assert files(api) == []
    assert api.get("/v1/projects/p/jobs") == {}
    gone = "The job projects/p/jobs/job was not found. It was deleted on 2026-11-20 by the admin."
    for method in ("GET", "DELETE"):
        assert api.refusal(method, JOB, 404)["message"].endswith(gone)
    again = api.submit()
    assert again.status_code == 409
    assert "A job with this id existed and was deleted. An id is never used again." in again.text


def test_service_goes_on_after_the_newest_job_was_deleted(api: Server, agent: ScriptedAgent) -> None:
    """The next job is another one, also where the database would use the key again."""
    api.delete_job()
    agent.turn()
    api.create("next", args=["--mine"])
    agent.turn()
    assert agent.run.training_input.args == ("--mine",)
    assert api.get("/trainyard/v1/projects/p/jobs/next/metrics")["names"] == []
    agent.start()
    agent.exit()
    assert api.job("next")["state"] == "SUCCEEDED"
    assert files(api) == ["logs/p/next"]


def test_job_that_has_not_ended_or_is_anothers_is_not_deleted(api: Server) -> None:
    api.create(who=ALICE)
    refused = "The job job is QUEUED. Only a job that has ended can be deleted: cancel it first."
    assert api.refusal("DELETE", JOB, 400, who=ALICE)["message"] == refused
    api.cancel()
    assert api.status("DELETE", JOB, BOB) == 403
    assert api.job()["state"] == "CANCELLED"
    api.delete_job(who=ALICE)
