"""Studies over HTTP: trials as jobs, their metrics, and how a study ends."""

import json
from typing import Any

import httpx

from integration.api.api_support import ADMIN, ScriptedAgent, Server
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder, SyncResponse, TrialMeasurement

JOBS = "/v1/projects/p/jobs"
SPEC: dict[str, Any] = {
    "hyperparameterMetricTag": "accuracy",
    "maxTrials": 4,
    "maxParallelTrials": 2,
    "algorithm": "RANDOM_SEARCH",
    "params": [
        {"parameterName": "lr", "type": "DOUBLE", "minValue": 0.001, "maxValue": 0.1},
        {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 3},
    ],
}


def create(api: Server, job_id: str = "study", **changes: Any) -> dict[str, Any]:
    return api.create(job_id, args=["--epochs", "3"], jobDir="gs://b/out", hyperparameters=SPEC | changes)


def trials(api: Server, job_id: str = "study") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = view(api, job_id)["trials"]
    return found


def view(api: Server, job_id: str = "study") -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/trainyard/v1/projects/p/jobs/{job_id}/trials")
    return found


def runs(agent: ScriptedAgent, answer: SyncResponse | None = None) -> dict[int, RunOrder]:
    """The runs of trials by number, once the agent has seen them."""
    orders = (answer or agent.sync()).runs
    return {order.trial.number: order for order in orders if order.trial is not None}


def listed(api: Server, **params: Any) -> list[str]:
    return [job["jobId"] for job in api.get("/v1/projects/p/jobs", **params).get("jobs", [])]


def finish(agent: ScriptedAgent, run: RunOrder, *values: float, **end: Any) -> None:
    """The trial runs, reports these values and ends; the queue goes on."""
    agent.start(run)
    agent.measure(run, *values)
    agent.exit(run=run, **end)
    agent.server.tick()


def finish_with(agent: ScriptedAgent, run: RunOrder, *lines: dict[str, Any]) -> None:
    """The trial runs, prints these reports and ends; the queue goes on."""
    agent.start(run)
    agent.log(*(json.dumps({"event": "progress"} | report) for report in lines), run=run)
    finish(agent, run)


def early_end(agent: ScriptedAgent, number: int) -> dict[str, Any]:
    """A trial that is asked to stop ends."""
    run = runs(agent)[number]
    assert run.target == "stop"
    agent.stopped("master-replica-0", run=run)
    agent.server.tick()
    trial = trials(agent.server)[number - 1]
    assert (trial["state"], trial["stopped_early"]) == ("SUCCEEDED", True)
    return trial


def test_study_runs_its_trials_and_tells_the_best(api: Server, agent: ScriptedAgent) -> None:
    create(api)
    assert (api.job("study")["state"], trials(api)) == ("QUEUED", [])
    api.tick()
    first, second = trials(api)
    assert (first["job_id"], first["state"], second["number"]) == ("study.1", "PREPARING", 2)
    assert api.job("study")["state"] == "PREPARING"

    run = runs(agent)[1]
    assert run.trial is not None
    assert (run.job_id, run.trial.study, run.trial.metric_tag) == ("study.1", "study", "accuracy")
    assert run.training_input.hyperparameters is None
    assert run.training_input.job_dir == "gs://b/out/1"
    flags = [word for name, value in first["parameters"].items() for word in (f"--{name}", value)]
    assert list(run.training_input.args) == ["--epochs", "3", *flags]

    agent.start(run)
    assert api.job("study")["state"] == "RUNNING"
    agent.measure(run, 0.5, 0.97)
    agent.sync()
    assert trials(api)[0]["measurements"] == [[1, 0.5], [2, 0.97]]
    agent.exit(run=run)
    api.tick()
    assert [trial["state"] for trial in trials(api)] == ["SUCCEEDED", "PREPARING", "PREPARING"]
    finish(agent, runs(agent)[2], 0.6, 0.7)
    misnamed = runs(agent)[3]
    agent.start(misnamed)
    agent.log('{"event": "progress", "step": 1, "loss": 0.5, "val_accuracy": 0.9}', run=misnamed)
    finish(agent, misnamed)
    finish(agent, runs(agent)[4], code=1, message="It failed.")

    job = api.job("study")
    assert job["state"] == "SUCCEEDED"
    output = job["trainingOutput"]
    assert {name: value for name, value in output.items() if name != "trials"} == {
        "completedTrialCount": "3",
        "consumedMLUnits": 0.0,
        "isHyperparameterTuningJob": True,
        "hyperparameterMetricTag": "accuracy",
    }
    assert [trial["trialId"] for trial in output["trials"]] == ["1", "2", "3", "4"]
    assert output["trials"][0]["finalMetric"] == {"trainingStep": "2", "objectiveValue": 0.97}
    assert output["trials"][1]["allMetrics"][0] == {"trainingStep": "1", "objectiveValue": 0.6}
    assert [trial["state"] for trial in output["trials"]][2:] == ["SUCCEEDED", "FAILED"]
    assert "finalMetric" not in output["trials"][2]
    lines = api.events("study")
    assert lines[3].startswith("Trial 1 started: lr=")
    assert "Trial 1 finished: accuracy 0.97 at step 2 (best so far)." in lines
    assert "Trial 2 finished: accuracy 0.7 at step 2 (best: 0.97 of trial 1)." in lines
    assert "Trial 3 finished, and reported no accuracy. It reported loss, val_accuracy." in lines
    assert "Trial 4 failed: The replica master 0 exited with a non-zero status of 1." in lines
    assert lines[-1].startswith("Job completed successfully. Best of 4 trials: trial 1, accuracy 0.97 (lr=")
    streamed = [data for event, data, _ in api.stream("study") if event == "log"]
    assert [data["text"] for data in streamed] == lines
    assert not streamed[-1]["routine"]
    assert (view(api)["best"], view(api)["completed"], view(api)["failed"]) == (1, 3, 1)
    detail = api.detail("study")
    assert (detail["is_study"], detail["exit_code"], detail["runs"]) == (True, 0, [])
    assert (api.detail("study.4")["study"], api.detail("study.4")["trial"]) == ("study", 4)
    assert api.detail("study.1")["trial_metric"] == {"name": "accuracy", "step": 2, "value": 0.97}


def test_lists_counts_and_searches_leave_trials_out(api: Server, agent: ScriptedAgent) -> None:
    create(api)
    api.create("other")
    api.tick()
    # The trials came after it: a study has no more than its trials in the queue, and those wait their turn.
    assert {order.job_id for order in agent.sync().runs} == {"other", "study.1"}
    assert listed(api) == ["other", "study"]
    assert listed(api, filter="jobId:study*") == ["study"]
    job = next(one for one in api.get("/v1/projects/p/jobs")["jobs"] if one["jobId"] == "study")
    assert job["trainingOutput"]["completedTrialCount"] == "0"
    assert "trials" not in job["trainingOutput"]
    found = api.get("/trainyard/v1/jobs", q="stud")["jobs"]
    assert [one["job_id"] for one in found] == ["study"]
    assert sum(api.get("/trainyard/v1/status")["jobs"].values()) == 2
    active = api.get("/trainyard/v1/jobs:active")
    assert sorted(one["job_id"] for one in active["jobs"]) == ["other", "study"]
    # What waits for machines are trials: the queue has those, and no study.
    cluster = api.use_cases.cluster.page(None)
    assert [entry.job_id for entry in cluster.queue] == ["study.2"]


def test_deleting_a_study_deletes_its_trials(api: Server, agent: ScriptedAgent) -> None:
    create(api, maxTrials=1)
    api.tick()
    finish(agent, runs(agent)[1], 0.5)
    path = "/trainyard/v1/projects/p/jobs"
    api.refusal("DELETE", f"{path}/study.1", 400, "is deleted with its study, study.")
    api.delete_job("study")
    for job_id in ("study", "study.1"):
        assert api.status("GET", f"{JOBS}/{job_id}") == 404
    assert not list(api.use_cases.backend.settings.data_dir.glob("logs/p/study*"))
    create(api, "again")  # its trials get keys and ids that no job ever had
    api.tick()
    assert [trial["state"] for trial in trials(api, "again")] == ["PREPARING", "PREPARING"]


def test_failed_infrastructure_is_tried_again_and_failed_programs_count(api: Server, agent: ScriptedAgent) -> None:
    create(api, maxTrials=5, maxParallelTrials=1, maxFailedTrials=2)
    api.tick()
    first = runs(agent)[1]
    agent.start(first)
    agent.exit(run=first, code=137, reason=Reason.KILLED_BY_SIGNAL)
    api.clock.advance(60)
    agent.sync()
    api.tick()
    assert (trials(api)[0]["retries"], trials(api)[0]["state"]) == (1, "PREPARING")
    finish(agent, runs(agent)[1], 0.4, code=3)
    assert api.job("study")["state"] == "RUNNING"
    finish(agent, runs(agent)[2], code=3)
    job = api.job("study")
    assert job["state"] == "FAILED"
    assert job["errorMessage"].startswith("2 of 5 trials failed (maxFailedTrials is 2). Trial 2: The replica")
    assert len(trials(api)) == 2
    assert view(api)["best"] is None  # what a failed trial measured does not count


def test_study_resumes_another_and_takes_its_seed_from_a_label(api: Server, agent: ScriptedAgent) -> None:
    create(api, maxTrials=1)
    api.tick()

    def post(resumed: str, job_id: str = "more", seed: str = "7") -> httpx.Response:
        resumes = SPEC | {"resumePreviousJobId": resumed}
        return api.submit(job_id, labels={"trainyard_seed": seed}, hyperparameters=resumes)

    assert "Only a job that has ended can be resumed" in post("study").text
    assert "has no job nothing with trials" in post("nothing").text
    assert "labels.trainyard_seed" in post("", seed="abc").text
    assert "at most 122 characters" in post("", job_id="x" * 123).text
    finish(agent, runs(agent)[1], 0.5)
    assert post("study").status_code == 200
    assert view(api, "more")["resumed"] == 1


def test_grid_of_which_no_point_is_left_is_not_resumed(api: Server, agent: ScriptedAgent) -> None:
    grid: dict[str, Any] = {
        "algorithm": "GRID_SEARCH",
        "params": [SPEC["params"][1] | {"maxValue": 2}],
        "maxParallelTrials": 1,
    }
    create(api, **grid, maxTrials=1)
    api.tick()
    finish(agent, runs(agent)[1], 0.5)
    create(api, "rest", **grid, resumePreviousJobId="study")
    api.tick()
    finish(agent, runs(agent)[1], 0.6)
    assert [(trial["parameters"], api.job("rest")["state"]) for trial in trials(api, "rest")] == [
        ({"layers": "2"}, "SUCCEEDED")
    ]
    refused = api.submit("again", hyperparameters=SPEC | grid | {"resumePreviousJobId": "rest"})
    assert (refused.status_code, "none is left to try" in refused.text) == (400, True)


GRID: dict[str, Any] = {
    "algorithm": "GRID_SEARCH",
    "hyperparameterMetricTag": None,
    "params": [SPEC["params"][1]],
    "maxTrials": 3,
    "maxParallelTrials": 1,
}


def test_grid_without_a_metric_takes_the_validation_metric_that_its_trials_report(
    api: Server, agent: ScriptedAgent
) -> None:
    create(api, **GRID)
    api.tick()
    for number, (loss, validation) in enumerate(((0.1, 0.5), (0.2, 0.3), (0.3, 0.4)), 1):
        reports = ({"step": 1, "loss": loss}, {"step": 2, "loss": loss, "val_loss": validation})
        finish_with(agent, runs(agent)[number], *reports)
    assert api.job("study")["state"] == "SUCCEEDED"
    assert "No metric was named: trials are ranked by val_loss, the smallest first." in api.events("study")
    assert "Trial 1 finished: val_loss 0.5 at step 2 (best so far)." in api.events("study")
    output = api.job("study")["trainingOutput"]
    assert output["hyperparameterMetricTag"] == "val_loss"
    assert [trial["trialId"] for trial in output["trials"]] == ["2", "3", "1"]
    (listed_job,) = api.get("/v1/projects/p/jobs")["jobs"]
    assert listed_job["trainingOutput"]["hyperparameterMetricTag"] == "val_loss"
    assert (view(api)["metric_tag"], view(api)["goal"], view(api)["best"]) == ("val_loss", "MINIMIZE", 2)
    assert api.detail("study.1")["trial_metric"]["name"] == "val_loss"
    assert api.get("/trainyard/v1/projects/p/jobs/study/study")["best"] == 2


def test_trials_are_ranked_afterwards_by_any_metric_that_they_reported(api: Server, agent: ScriptedAgent) -> None:
    create(api, **GRID)
    api.tick()
    further = {f"layer_{number}": 0.0 for number in range(10)}
    for number, (accuracy, speed) in enumerate(((0.5, 3.0), (0.7, 2.0), (0.6, 1.0)), 1):
        reports = {"step": 2, "val_loss": 1.0, "val_accuracy": accuracy, **further, "speed": speed}
        finish_with(agent, runs(agent)[number], reports)
    path = "/trainyard/v1/projects/p/jobs/study/trials"
    unranked = api.get(path)
    assert (unranked["best"], unranked["reported"][:2]) == (None, ["val_loss", "val_accuracy"])
    (done,) = [line for line in api.events("study") if line.startswith("Job completed")]
    assert "not ranked, since no metric was named. They reported val_loss, val_accuracy, layer_0" in done
    ranked = api.get(path, metric="val_accuracy")
    assert (ranked["best"], ranked["goal"], ranked["metric_tag"]) == (2, "MAXIMIZE", "val_accuracy")
    assert [trial["final"]["value"] for trial in ranked["trials"]] == [0.5, 0.7, 0.6]
    assert api.get(path, metric="speed", goal="minimize")["best"] == 3  # beyond the metrics that have a curve
    for says, params in {
        "goal Error: is needed": {"metric": "speed"},
        "metric Error: No trial of study has reported": {"metric": "los", "goal": "minimize"},
        "goal Error: must be maximize or minimize": {"metric": "speed", "goal": "up"},
    }.items():
        api.refusal("GET", path, 400, says, params=params)


def test_study_whose_first_trials_lack_its_metric_stops_and_says_what_they_reported(
    api: Server, agent: ScriptedAgent
) -> None:
    create(api, maxTrials=9, maxParallelTrials=1)
    api.tick()
    for number in (1, 2):
        finish_with(agent, runs(agent)[number], {"step": 1, "loss": 0.5, "val_acc": 0.9})
    third = runs(agent)[3]
    agent.start(third)
    agent.other_metrics[third.run_id] = {"hypertune_acc": TrialMeasurement(step=3, value=0.75)}
    finish(agent, third)
    job = api.job("study")
    assert (job["state"], len(trials(api))) == ("FAILED", 3)
    assert job["errorMessage"].startswith(
        "The first 3 trials that ended reported no accuracy. They reported loss, val_acc, hypertune_acc: "
        "jobs trials study --metric NAME ranks them by one of these."
    )
    ranked = api.get("/trainyard/v1/projects/p/jobs/study/trials", metric="hypertune_acc")
    assert (ranked["best"], ranked["trials"][2]["final"]) == (3, {"step": 3, "value": 0.75})


def test_metric_file_and_lines_are_one_curve_whose_value_is_the_files(api: Server, agent: ScriptedAgent) -> None:
    """A program that writes its file once, at the end, has been measured all along."""
    create(api, maxTrials=1, maxParallelTrials=1)
    api.tick()
    run = runs(agent)[1]
    agent.start(run)
    for step in (1, 2, 3):
        report = {"event": "progress", "step": step * 10, "accuracy": step / 10}
        agent.log(json.dumps(report), run=run)
    api.use_cases.backend.progress.flush()
    api.tick()
    agent.measure(run, 0.8, 0.9)  # by epochs, 1 and 2
    agent.sync()
    trial = trials(api)[0]
    assert trial["measurements"] == [[1, 0.8], [2, 0.9], [10, 0.1], [20, 0.2], [30, 0.3]]
    assert trial["final"] == {"step": 2, "value": 0.9}
    agent.log(json.dumps({"event": "progress", "step": 40, "accuracy": 0.4}), run=run)
    finish(agent, run, 0.8, 0.95)
    assert trials(api)[0]["measurements"][1:] == [[2, 0.95], [10, 0.1], [20, 0.2], [30, 0.3], [40, 0.4]]
    assert trials(api)[0]["final"] == {"step": 2, "value": 0.95}


def test_asha_stops_a_trial_that_diverges_and_one_that_falls_behind(api: Server, agent: ScriptedAgent) -> None:
    create(api, maxParallelTrials=1, earlyStopping={"rule": "ASHA", "minSteps": 2})
    api.tick()
    finish(agent, runs(agent)[1], 0.5, 0.6, 0.7)

    def stopped(number: int, reason: str, *values: float) -> dict[str, Any]:
        run = runs(agent)[number]
        agent.start(run)
        reports = [{"event": "progress", "step": step, "accuracy": value} for step, value in enumerate(values, 1)]
        agent.log(*map(json.dumps, reports), run=run)
        api.use_cases.backend.progress.flush()
        api.tick()
        trial = early_end(agent, number)
        assert trial["error"] == f"The trial was stopped early by ASHA: {reason}."
        assert any(
            line.startswith(f"Trial {number} was stopped early by ASHA: {reason}.") for line in api.events("study")
        )
        return trial

    diverged = stopped(2, "not finite at step 2 (rung 0), 0.6 needed", 0.65, float("nan"))
    assert (diverged["final"], diverged["measurements"]) == ({"step": 1, "value": 0.65}, [[1, 0.65]])
    assert stopped(3, "0.4 at step 2 (rung 0), 0.6 needed", 0.9, 0.4)["final"]["value"] == 0.4
    finish(agent, runs(agent)[4], 0.5, 0.8, 0.9)
    assert api.job("study")["state"] == "SUCCEEDED"
    assert view(api)["best"] == 4
    charts = api.get("/trainyard/v1/projects/p/jobs/study/study")
    assert charts["early_stopping"] == "by ASHA, one of 3 goes on at each rung, from step 2"
    assert charts["trials"][2]["note"].startswith("The trial was stopped early by ASHA")
    page = api.client.get("/projects/p/jobs/study", headers=ADMIN).text
    assert "<dt>Early stopping</dt><dd>By ASHA, one of 3 goes on at each rung, from step 2</dd>" in page


def test_pages_tell_the_metric_of_a_trial_and_what_a_study_came_to(api: Server, agent: ScriptedAgent) -> None:
    def page(path: str) -> str:
        return api.client.get(path, headers=ADMIN).text

    create(api, maxTrials=1)
    api.tick()
    finish(agent, runs(agent)[1], 0.5, 0.8)
    trial = page("/projects/p/jobs/study.1")
    assert '<dt>accuracy</dt><dd class="big">0.8</dd><dd class="dim">at step 2</dd>' in trial
    assert "no metrics" not in trial
    create(api, "grid", algorithm="GRID_SEARCH", params=[SPEC["params"][1]], maxTrials=9, maxParallelTrials=1)
    api.tick()
    assert "0 of 3 trials ended" in page("/projects/p/jobs/grid")
    for number in (1, 2, 3):
        finish(agent, runs(agent)[number], code=1)
    assert "<li>3 trials</li>" in page("/projects/p/jobs/grid")
    assert "The first 3 trials that ended all failed." in page("/")


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
    trial = api.get("/trainyard/v1/projects/p/jobs/study/study")["trials"][3]
    assert (trial["state"], trial["stopped_early"]) == ("FAILED", False)
    assert trial["note"].startswith("The replica master 0 exited")
