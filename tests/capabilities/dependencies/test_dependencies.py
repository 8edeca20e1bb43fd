"""Jobs that start after others: what holds them, what releases them, and what cancels them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.databases import on_every_database
from integration.api.api_support import BOB, ScriptedAgent, Server, server
from integration.api.api_support import Clock as ManualClock
from trainyard_server.capabilities.dependencies.dependencies import Dependencies

DAY_S = 86400.0


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Server]:
    directory = str(tmp_path / "jobs")
    with server(tmp_path / "data", ManualClock(), default_job_dir=directory, keep_jobs_s=30 * DAY_S) as running:
        yield running


def go_on(api: Server, agent: ScriptedAgent) -> None:
    """Measure, decide about followers, plan, and tell the agent."""
    api.use_cases.written_metrics.step(api.clock.stopwatch())
    api.use_cases.of(Dependencies).step()
    agent.turn(1)


def end(api: Server, agent: ScriptedAgent, job_id: str, code: int = 0, **metrics: float) -> None:
    """Run a job that may start to its end."""
    go_on(api, agent)
    run = next(run for run in agent.runs.values() if run.job_id == job_id)
    agent.start(run)
    if metrics:
        agent.log(*(f"step=1 {name}={value}" for name, value in metrics.items()), run=run)
    agent.exit(code=code, run=run)
    go_on(api, agent)


def states(api: Server) -> dict[str, str]:
    return {job["jobId"]: job["state"] for job in api.get("/v1/projects/p/jobs").get("jobs", ())}


def waiting(api: Server, job_id: str) -> str:
    text: str = api.detail(job_id)["waiting"]
    return text


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    agent = ScriptedAgent(api, cpus=4)
    agent.sync()
    return agent


@on_every_database
def test_job_waits_until_its_predecessor_has_succeeded_and_gets_its_directory(
    api: Server, agent: ScriptedAgent, tmp_path: Path
) -> None:
    api.create("train")
    api.create("eval", after=["train"], args=["--from", "{after.job_dir}/model"])
    api.create("other")
    go_on(api, agent)
    assert states(api) == {"train": "PREPARING", "eval": "QUEUED", "other": "PREPARING"}, "others pass it"
    assert waiting(api, "eval") == "waits for train to succeed"
    assert "jobPosition" not in api.job("eval")
    why = api.get("/trainyard/v1/projects/p/jobs/eval/why")
    assert (why["summary"], why["kind"]) == ("It waits for train to succeed.", "")
    assert "Job eval waits for train to succeed." in api.events("eval")
    end(api, agent, "train")
    assert api.job("eval")["state"] == "PREPARING"
    assert "Job eval may start now." in api.events("eval")
    run = next(run for run in agent.runs.values() if run.job_id == "eval")
    directory = str(tmp_path / "jobs" / "p" / "admin" / "train")
    assert run.variables == {"TRAINYARD_AFTER_JOB_DIR": directory, "TRAINYARD_AFTER_JOB_DIRS": directory}
    assert run.training_input.args == ("--from", f"{directory}/model")
    agent.start(run)
    explained = api.get("/trainyard/v1/projects/p/jobs/eval/explain")
    assert explained["environment"]["TRAINYARD_AFTER_JOB_DIR"] == directory
    assert explained["command"][-2:] == ["--from", f"{directory}/model"]
    assert api.job("eval")["trainingInput"]["args"] == ["--from", "{after.job_dir}/model"], "as it was sent"


def test_fan_in_waits_for_all_and_says_which_are_left(api: Server, agent: ScriptedAgent, tmp_path: Path) -> None:
    for name in ("a", "b"):
        api.create(name)
    api.create("join", after=["a", "b:ended"])
    assert waiting(api, "join") == "waits for a to succeed and for b to end"
    end(api, agent, "a")
    assert waiting(api, "join") == "waits for b to end"
    end(api, agent, "b", code=1)
    assert api.job("join")["state"] == "PREPARING"
    run = next(run for run in agent.runs.values() if run.job_id == "join")
    root = tmp_path / "jobs" / "p" / "admin"
    assert run.variables["TRAINYARD_AFTER_JOB_DIRS"] == f"{root / 'a'} {root / 'b'}"


@on_every_database
def test_chain_ends_with_the_reason_where_a_job_in_it_fails(api: Server, agent: ScriptedAgent) -> None:
    api.create("a")
    for before, name in (("a", "b"), ("b", "c"), ("c", "d")):
        api.create(name, after=[before])
    api.create("cleanup", after=["d:ended"])
    end(api, agent, "a")
    end(api, agent, "b", code=3)
    assert states(api) | {"cleanup": ""} == {"a": "SUCCEEDED", "b": "FAILED", "c": "CANCELLED", "d": "CANCELLED"} | {
        "cleanup": ""
    }
    assert api.job("c")["errorMessage"] == (
        "The job was cancelled because b ended as FAILED, and it was to start after that job had succeeded."
    )
    assert "because c ended as CANCELLED" in api.job("d")["errorMessage"]
    assert api.job("cleanup")["state"] == "PREPARING"
    api.create("late", after=["b"])
    go_on(api, agent)
    assert "because b ended as FAILED" in api.job("late")["errorMessage"], "as if it had been there before"


@on_every_database
def test_condition_on_a_metric_is_decided_by_the_last_value(api: Server, agent: ScriptedAgent) -> None:
    api.create("train")
    for name, condition in (("good", "val_loss<0.3"), ("bad", "val_loss<0.2"), ("typo", "val_los<1")):
        api.create(name, after=[f"train:metrics.{condition}"])
    assert waiting(api, "good") == "waits for train to succeed with val_loss < 0.3"
    end(api, agent, "train", val_loss=0.25)
    assert states(api) == {"train": "SUCCEEDED", "good": "PREPARING", "bad": "CANCELLED", "typo": "CANCELLED"}
    assert "train ended with val_loss = 0.25, and it was to start if val_loss < 0.2." in api.job("bad")["errorMessage"]
    assert api.job("typo")["errorMessage"].endswith('train has no metric val_los, and it was to start if val_los < 1. '
                                                    'Did you mean "val_loss"?')  # fmt: skip


def test_condition_waits_until_the_metrics_are_complete_and_no_longer_than_a_day(
    api: Server, agent: ScriptedAgent
) -> None:
    api.create("train")
    api.create("eval", after=["train:metrics.loss<1"])
    agent.turn()
    agent.start()
    agent.report_steps(loss=0.5)
    agent.exit()
    api.use_cases.of(Dependencies).step()
    assert api.job("eval")["state"] == "QUEUED", "later values may come"
    api.clock.advance(DAY_S + 1)
    go_on(api, agent)
    assert api.job("eval")["state"] == "PREPARING"


def test_retries_of_a_predecessor_are_waited_for(api: Server, agent: ScriptedAgent) -> None:
    api.create("train", scheduling={"retry": [{"exitCodes": [33]}]})
    api.create("eval", after=["train"])
    end(api, agent, "train", code=33)
    assert states(api)["eval"] == "QUEUED"
    api.clock.advance(3600)
    end(api, agent, "train")
    assert states(api) == {"train": "SUCCEEDED", "eval": "PREPARING"}


def test_study_waits_without_trials_and_counts_as_a_predecessor(api: Server, agent: ScriptedAgent) -> None:
    spec = {"maxTrials": 1, "params": [{"parameterName": "lr", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}]}
    api.create("prepare")
    api.create("tune", after=["prepare"], hyperparameters=spec)
    api.create("final", after=["tune"])
    go_on(api, agent)
    assert api.get("/trainyard/v1/projects/p/jobs/tune/trials")["trials"] == []
    assert api.get("/trainyard/v1/projects/p/jobs/tune/why")["summary"] == "It waits for prepare to succeed."
    page = api.client.get("/projects/p/jobs/tune", headers=api.session("admin")).text
    assert "Waits for prepare to succeed" in page
    assert 'title="tune to succeed">final</a>' in page
    answer = api.submit("wrong", after=["tune:metrics.loss<1"])
    assert (answer.status_code, "tune is a study, whose trials have the metrics" in answer.text) == (400, True)
    end(api, agent, "prepare")
    agent.turn()
    trial = next(run for run in agent.runs.values() if run.job_id == "tune.1")
    assert trial.variables["TRAINYARD_AFTER_JOB_DIR"].endswith("/prepare")
    agent.measure(trial, 0.5)
    end(api, agent, "tune.1")
    api.tick()
    go_on(api, agent)
    assert states(api) == {"prepare": "SUCCEEDED", "tune": "SUCCEEDED", "final": "PREPARING"}


def test_submission_after_what_there_is_not_is_refused_with_a_sentence(api: Server, agent: ScriptedAgent) -> None:
    api.create("elsewhere", project="q")
    api.create("gone")
    api.cancel("gone")
    api.delete_job("gone")
    refusals = {
        "self": ("self", "self is this job itself"),
        "unknown": ("typo", "The project p has no job typo. A job starts after jobs of its own project"),
        "project": ("elsewhere", "The project p has no job elsewhere."),
        "deleted": ("gone", "The job gone was deleted on 2026-11-20 by the admin."),
        "syntax": ("a:b", "has the condition 'b'; allowed"),
    }
    for name, (after, says) in refusals.items():
        answer = api.submit(name, after=[after])
        assert (answer.status_code, "after[0]" in answer.text, says in answer.text) == (400, True, True), answer.text
    assert "it lists 101" in api.submit("many", after=["a"] * 101).text
    assert "have {after.job_dir}, and the job has no `after`" in api.submit("args", args=["{after.job_dir}"]).text
    assert states(api) == {}


def test_predecessor_is_kept_while_a_job_needs_it(api: Server, agent: ScriptedAgent) -> None:
    api.create("a")
    api.create("b")
    api.create("join", after=["a", "b"])
    end(api, agent, "a")
    says = "The job a cannot be deleted yet: join starts after it, and is QUEUED."
    api.refusal("DELETE", "/trainyard/v1/projects/p/jobs/a", 400, says)
    api.create("plain")
    api.cancel("plain")
    api.clock.advance(40 * DAY_S)
    capability = pytest.importorskip(
        "trainyard_server.capabilities.retention.retention"
    )  # another one, which may be out
    retention = api.use_cases.of(capability.Retention)
    while retention.step():
        pass
    assert sorted(states(api)) == ["a", "b", "join"], "others are not kept"
    api.cancel("join")
    api.delete_job("a")
    assert sorted(states(api)) == ["b", "join"]
    view = api.get("/trainyard/v1/projects/p/jobs/join/dependencies")
    assert [(job["job_id"], job["state"]) for job in view["predecessors"]] == [("a", None), ("b", "PREPARING")]


def test_time_to_wait_and_the_limit_of_it_begin_with_the_release(api: Server, agent: ScriptedAgent) -> None:
    api.create("train")
    api.create("eval", after=["train"], scheduling={"maxWaitTime": "1800s"}, masterType="local-4")
    agent.turn()
    api.clock.advance(3 * 3600)
    api.tick()
    assert api.job("eval")["state"] == "QUEUED"
    agent.start()
    agent.exit()
    api.create("long")
    agent.turn()
    go_on(api, agent)
    assert "agent laptop has 4 vCPU, of which 3 are free" in waiting(api, "eval")
    api.tick(1900)
    assert "waited longer than its maxWaitTime of 1800s" in api.job("eval")["errorMessage"]


def test_held_job_is_cancelled_by_its_owner_and_kept_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    with server(tmp_path, clock) as api:
        api.create("train")
        api.create("eval", after=["train"])
        api.create("other", after=["train"])
    with server(tmp_path, clock) as api:
        agent = ScriptedAgent(api)
        agent.sync()
        go_on(api, agent)
        assert states(api) == {"train": "PREPARING", "eval": "QUEUED", "other": "QUEUED"}
        api.cancel("eval")
        assert api.job("eval")["state"] == "CANCELLED"
        end(api, agent, "train")
        assert states(api) == {"train": "SUCCEEDED", "eval": "CANCELLED", "other": "PREPARING"}


def test_page_and_list_show_the_jobs_before_and_after(api: Server, agent: ScriptedAgent) -> None:
    api.create("train")
    api.create("eval", after=["train"])
    session = api.session("bob")
    assert api.set_role("bob", "viewer") == 200
    page = api.client.get("/projects/p/jobs/eval", headers=session).text
    assert "Starts after" in page
    assert 'title="train to succeed">train</a>' in page
    assert "Waits for train to succeed" in page
    page = api.client.get("/projects/p/jobs/train", headers=session).text
    assert 'title="train to succeed">eval</a>' in page
    assert "waits for train to succeed" in api.client.get("/", headers=session).text
    view = api.done("GET", "/trainyard/v1/projects/p/jobs/train/dependencies", BOB)
    assert view == {
        "predecessors": [],
        "followers": [{"job_id": "eval", "wanted": "train to succeed", "state": "QUEUED"}],
    }
