"""Studies as text: the table of trials, and where a study stands."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainyard_cli.output.jobs import studies, study_status
from trainyard_protocol.answers.tuning import StudyView

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
SPEC = {
    "params": [
        {
            "parameterName": "optimizer",
            "type": "CATEGORICAL",
            "categoricalValues": ["adam", "momentum"],
            "childParameterSpecs": [{"parameterName": "warmup", "type": "DOUBLE", "minValue": 0, "maxValue": 1,
             "parentCategoricalValues": {"values": ["momentum"]}}],
        }
    ]
}  # fmt: skip


NOTE = "stopped early by ASHA: 0.5 at step 9 (rung 1), 0.85 needed"


def trial(number: int, state: str, value: float | None = None, **fields: Any) -> dict[str, Any]:
    final = {} if value is None else {"final": {"step": 90, "value": value}}
    return {
        "number": number, "job_id": f"study.{number}", "state": state, "parameters": {"optimizer": "adam"},
        "created_at": NOW, **final, **fields,
    }  # fmt: skip


def view(goal: str = "MAXIMIZE") -> StudyView:
    took = {"started_at": NOW - timedelta(seconds=70), "ended_at": NOW - timedelta(seconds=5)}
    long = {"optimizer": "momentum", "warmup": "0.48574494692529"}
    return StudyView.model_validate(
        {
            "job_id": "study",
            "state": "RUNNING",
            "goal": goal,
            "metric_tag": "accuracy",
            "algorithm": "ALGORITHM_UNSPECIFIED",
            "max_trials": 6,
            "max_parallel_trials": 2,
            "spec": SPEC | {"maxTrials": 6},
            "counts": {"SUCCEEDED": 3, "FAILED": 1, "RUNNING": 1},
            "completed": 3,
            "failed": 1,
            "best": 3,
            "trials": [
                trial(1, "SUCCEEDED", 0.5, **took, parameters=long),
                trial(2, "FAILED", 0.99, error="The replica master 0 exited.\x1b[2J"),
                trial(3, "SUCCEEDED", 0.9723456789, **took),
                trial(4, "SUCCEEDED", 0.5, **took, stopped_early=True, error=f"The trial was {NOTE}."),
                trial(5, "RUNNING", started_at=NOW - timedelta(seconds=9)),
            ],
        }
    )


def test_table_has_the_best_trial_first_and_a_column_for_each_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    assert (
        studies.trials_text(view(), NOW)
        == f"""\
TRIAL  STATE      accuracy  STEP  optimizer  warmup    STARTED   TOOK   NOTE
3      SUCCEEDED  0.972346  90    adam       -         11:58:50  01:05
1      SUCCEEDED  0.5       90    momentum   0.485745  11:58:50  01:05
4      SUCCEEDED  0.5       90    adam       -         11:58:50  01:05  {NOTE}
2      FAILED     0.99      90    adam       -         -         -      The replica master 0 exited.
5      RUNNING    -         -     adam       -         11:59:51  00:09"""
    )
    assert [one.number for one in studies.best_first(view("MINIMIZE"))] == [1, 4, 3, 2, 5]
    assert studies.totals(view()) == "4 of 6 trials ended, 1 of them failed. Best: trial 3."


def test_status_of_a_study_names_the_best_trial_so_far_and_the_command_that_trains_with_it() -> None:
    best = {
        "trialId": "3",
        "hyperparameters": {"lr": "0.1", "layers": "2"},
        "finalMetric": {"trainingStep": "90", "objectiveValue": 0.97},
        "state": "SUCCEEDED",
    }
    output = {"isHyperparameterTuningJob": True, "hyperparameterMetricTag": "accuracy"}
    job = {
        "jobId": "study",
        "state": "RUNNING",
        "trainingInput": {"hyperparameters": SPEC | {"maxTrials": 4}},
        "trainingOutput": output,
    }
    assert study_status.summary(job) == ["Trials: 0 of 4 trials ended."]
    assert study_status.next_step(job) == []
    stopped = {"trialId": "1", "state": "SUCCEEDED", "isTrialStoppedEarly": True}
    early = job | {"trainingInput": {"hyperparameters": SPEC | {"earlyStopping": {"rule": "ASHA"}}}}
    assert study_status.summary(early | {"trainingOutput": output | {"trials": [stopped]}})[1:] == [
        "Early stopping: by ASHA, one of 3 goes on at each rung, from a step that follows from the first trials; "
        "1 trial stopped."
    ]
    output["trials"] = [best, {"trialId": "1", "state": "RUNNING"}]
    assert study_status.summary(job) == [
        "Trials: 1 of 4 trials ended, 1 running, best accuracy 0.97 (trial 3).",
        "Best: trial 3, lr=0.1, layers=2.",
    ]
    command = "jobs submit training --from-trial study/3 --project q"
    assert study_status.next_step(job, " --project q") == [f"To train with it:  {command}"]
    assert study_status.words(job | {"state": "FAILED"})[0] == "1 trial"
    output["trials"] = [best | {"state": "FAILED"}]
    assert study_status.summary(job) == ["Trials: 1 of 4 trials ended."]
    assert study_status.next_step(job) == []
    assert study_status.summary({"jobId": "other", "trainingOutput": {"consumedMLUnits": 1}}) == []
