"""The data of a study's page: its charts, and clones of its trials."""

import html
from typing import Any

import pytest

from integration.api.api_support import ADMIN, ScriptedAgent, Server
from integration.api.jobs.test_studies import SPEC, create, finish, finish_with, runs

VALUES = (0.6, 0.8, 0.7, 0.95)


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent with a study whose first four trials have ended, the last of which runs, and whose fifth failed."""
    agent = ScriptedAgent(api, cpus=2)
    agent.sync()
    create(api, maxTrials=6, maxParallelTrials=1)
    api.tick()
    for number, value in enumerate(VALUES, 1):
        finish(agent, runs(agent)[number], 0.5, value)
    finish(agent, runs(agent)[5], 0.99, code=1)
    return agent


def charts(api: Server, job_id: str = "study") -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/trainyard/v1/projects/p/jobs/{job_id}/study")
    return found


def page(api: Server, path: str, status: int = 200) -> str:
    answer = api.client.get(path, headers=ADMIN)
    assert answer.status_code == status, answer.text
    return html.unescape(answer.text)


def test_charts_have_the_trials_their_best_and_the_axes(api: Server, agent: ScriptedAgent) -> None:
    found = charts(api)
    assert (found["count"], found["best"]) == (6, 4)
    assert found["records"] == [[1, 0.6], [2, 0.8], [4, 0.95]]
    assert found["counts"] == {"SUCCEEDED": 4, "FAILED": 1, "PREPARING": 1}
    failed, running = found["trials"][4:]
    assert (failed["state"], failed["value"]) == ("FAILED", 0.99)
    assert failed["note"].startswith("The replica master 0 exited")
    agent.activity = "pulling the image"
    agent.sync()
    assert (running["job_id"], charts(api)["trials"][5]["note"]) == ("study.6", "pulling the image")
    lr, layers = found["parameters"]
    assert (lr["name"], lr["low"], lr["high"], lr["values"]) == ("lr", 0.001, 0.1, [])
    assert (layers["type"], layers["importance"]) == ("INTEGER", None)  # there are too few trials
    api.refusal("GET", "/trainyard/v1/projects/p/jobs/study.1/study", 400, "study.1 has no trials")


def test_pages_tell_the_metric_of_a_trial_and_what_a_study_came_to(api: Server, agent: ScriptedAgent) -> None:
    trial = page(api, "/projects/p/jobs/study.2")
    assert '<dt>accuracy</dt><dd class="big">0.8</dd><dd class="dim">at step 2</dd>' in trial
    assert "no metrics" not in trial
    grid = [SPEC["params"][1]]
    create(api, "grid", algorithm="GRID_SEARCH", params=grid, maxTrials=9, maxParallelTrials=1)
    api.tick()
    assert charts(api, "grid")["planned_trials"] == 3
    assert "0 of 3 trials ended" in page(api, "/projects/p/jobs/grid")
    for number in (1, 2, 3):
        finish(agent, runs(agent)[number], code=1)
    assert "<li>3 trials</li>" in page(api, "/projects/p/jobs/grid")
    assert "The first 3 trials that ended all failed." in page(api, "/")


def test_trial_that_fails_while_it_is_stopped_early_is_shown_as_failed(api: Server) -> None:
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    create(api, maxTrials=4, maxParallelTrials=1, enableTrialEarlyStopping=True)
    api.tick()
    for number in (1, 2, 3):
        finish(agent, runs(agent)[number], 0.8)
    run = runs(agent)[4]
    agent.start(run)
    agent.measure(run, 0.2)
    agent.sync()
    assert runs(agent)[4].target == "stop"
    agent.exit(run=run, code=1)
    api.tick()
    trial = charts(api)["trials"][3]
    assert (trial["state"], trial["stopped_early"]) == ("FAILED", False)
    assert trial["note"].startswith("The replica master 0 exited")


def test_clone_of_a_trial_is_a_job_with_an_id_and_a_directory_of_its_own(api: Server, agent: ScriptedAgent) -> None:
    config = api.get("/trainyard/v1/projects/p/jobs/study.2/config")
    assert (config["clone"]["job_id"], config["clone"]["job_dir"]) == ("study_2", "")
    assert config["clone"]["args"][:2] == ["--epochs", "3"]


def test_comparison_of_trials_has_the_space_of_their_study(api: Server) -> None:
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    create(api, maxTrials=2, maxParallelTrials=1)
    api.tick()
    for number, value in enumerate(VALUES[:2], 1):
        finish_with(agent, runs(agent)[number], {"step": 1, "accuracy": value})
    api.use_cases.backend.progress.flush()
    found = api.get("/trainyard/v1/jobs:compare", job=["p/study.1", "p/study.2"])
    assert [axis["name"] for axis in found["axes"]] == ["lr", "layers"]
    assert (found["metric"], found["best"]) == ("accuracy", 1)
    assert api.get("/trainyard/v1/jobs:compare", job=["p/study", "p/study.2"])["axes"] == []
