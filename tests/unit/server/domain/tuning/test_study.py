"""Decisions about studies: when one fails, when a trial is stopped early, what counts."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from trainyard_protocol.job.hyperparameters import Goal, HyperparameterSpec
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.states import JobState
from trainyard_server.domain.tuning.measurements import chosen_metric
from trainyard_server.domain.tuning.study import (
    FailStudy,
    MoveStudy,
    StopTrials,
    StudySnapshot,
    TrialPhase,
    TrialSnapshot,
    step,
)
from trainyard_server.domain.tuning.trial_input import trial_input

PARAMS = [{"parameterName": "x", "type": "INTEGER", "minValue": 1, "maxValue": 9}]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DONE, FAILED, RUNNING = JobState.SUCCEEDED, JobState.FAILED, JobState.RUNNING


def study(
    *states: JobState, state: JobState = RUNNING, failure: str = "", measured: bool = True, **spec: Any
) -> StudySnapshot:
    """A study whose trials have these states, and lines in its log about them. Those that are DONE have a value."""
    trials = tuple(
        TrialSnapshot(
            number,
            10 + number,
            f"s.{number}",
            one,
            {"x": "1"},
            NOW,
            started_at=NOW,
            logged=TrialPhase.ENDED,
            final=(1, 0.5) if measured and one is DONE else None,
        )
        for number, one in enumerate(states, 1)
    )
    given = {"params": PARAMS, "maxTrials": 10, "maxParallelTrials": 2} | spec
    parsed = HyperparameterSpec.model_validate(given)
    return StudySnapshot(1, "p", "s", state, parsed, 0, trials, failure=failure)


def test_failed_trials_fail_the_study() -> None:
    rows: list[tuple[list[JobState], dict[str, Any], bool]] = [
        ([FAILED] * 3, {}, True),
        ([FAILED] * 2, {}, False),
        ([FAILED] * 2, {"maxTrials": 2}, True),
        ([DONE, FAILED, FAILED, FAILED], {}, False),
        ([DONE] + [FAILED] * 6, {}, True),
        ([FAILED, FAILED], {"maxFailedTrials": 2}, True),
        ([FAILED] * 4, {"maxFailedTrials": 5}, False),
    ]
    for states, spec, fails in rows:
        assert isinstance(step(study(*states, **spec)), FailStudy) == fails, (states, spec)


def test_study_that_fails_first_stops_its_trials_and_stays_failed_whatever_they_do() -> None:
    assert step(study(FAILED, RUNNING, failure="why")) == StopTrials((2,), "The study fails: why")
    assert step(study(FAILED, JobState.CANCELLING, failure="why")) is None
    assert step(study(FAILED, DONE, failure="why")) == MoveStudy(FAILED, "Job failed.", "why")
    queued = study(FAILED, DONE, failure="why", state=JobState.QUEUED)
    assert step(queued) == MoveStudy(JobState.PREPARING)  # every move of the table


def test_study_whose_first_trials_end_without_its_metric_fails_unless_it_needs_none() -> None:
    grid: dict[str, Any] = {"algorithm": "GRID_SEARCH"}
    tagged: dict[str, Any] = grid | {"hyperparameterMetricTag": "loss"}
    fails = {
        "the first three": study(DONE, DONE, DONE, RUNNING, measured=False),
        "a grid that names its metric": study(DONE, DONE, DONE, measured=False, **tagged),
        "all of two": study(DONE, DONE, maxTrials=2, measured=False),
    }
    goes_on = {
        "two of ten": study(DONE, DONE, measured=False),
        "one that runs has a value": study(DONE, DONE, DONE, RUNNING, measured=False),
        "a grid without a metric": study(DONE, DONE, DONE, measured=False, **grid),
    }
    running = goes_on["one that runs has a value"]
    trials = (*running.trials[:3], replace(running.trials[3], final=(1, 0.5)))
    goes_on["one that runs has a value"] = replace(running, trials=trials)
    decided = {name: step(one) for name, one in (fails | goes_on).items()}
    assert {name for name, one in decided.items() if isinstance(one, FailStudy)} == set(fails)
    assert decided["the first three"] == FailStudy(
        "The first 3 trials that ended reported no training/hptuning/metric.", lacks_metric=True
    )
    (ended,) = (step(study(DONE, FAILED, maxTrials=2, measured=False)),)
    message = "No trial that succeeded reported training/hptuning/metric."
    assert ended == MoveStudy(FAILED, "Job failed.", message, lacks_metric=True)


def test_metric_that_nobody_named_is_the_only_one_of_validation_with_a_direction() -> None:
    rows: list[tuple[list[str], Goal | None, str]] = [
        (["loss", "val_loss", "learning_rate"], None, "val_loss"),
        (["loss", "accuracy", "val_loss", "val_accuracy"], None, ""),
        (["loss", "accuracy", "val_loss", "val_accuracy"], Goal.MINIMIZE, "val_loss"),
        (["loss", "val_loss"], Goal.MAXIMIZE, ""),
        (["loss", "steps_per_second"], None, "loss"),
        (["speed"], Goal.MAXIMIZE, ""),
        ([], None, ""),
    ]
    wrong = [row for row in rows if chosen_metric(row[0], row[1]) != row[2]]
    assert not wrong


def test_input_of_a_trial_is_that_of_a_job_with_its_arguments_and_job_dir() -> None:
    config = {"imageUri": "i", "containerArgs": ["--a"]}
    sent = {"args": ["--b"], "jobDir": "gs://b/out/", "masterConfig": config}
    given = parse_training_input(sent | {"hyperparameters": {"params": PARAMS}})
    flags = ["--x", "3", "--low=-1e-05"]
    assert trial_input(given, 7, {"x": "3", "low": "-1e-05"}).canonical() == {
        "args": ["--b", *flags],
        "jobDir": "gs://b/out/7",
        "masterConfig": {"imageUri": "i", "containerArgs": ["--a", *flags]},
    }


def test_arguments_of_a_trial_are_in_the_style_of_its_study() -> None:
    rows = {
        ("FLAGS", "lr", "0.1"): ["--lr", "0.1"],
        ("FLAGS", "lr", "-1"): ["--lr=-1"],
        ("flags-with-equals", "lr", "0.1"): ["--lr=0.1"],
        ("OVERRIDES", "lr", "-1"): ["lr=-1"],
        ("overrides", "+model.lr", "0.1"): ["+model.lr=0.1"],
        ("OVERRIDES", "db/mysql@backup", "a b"): ["db/mysql@backup=a b"],
    }
    made = {}
    for style, name, value in rows:
        hyperparameters = {"params": [PARAMS[0] | {"parameterName": name}], "argumentStyle": style}
        given = parse_training_input({"args": ["a"], "hyperparameters": hyperparameters})
        made[style, name, value] = list(trial_input(given, 1, {name: value}).args)
    assert made == {key: ["a", *words] for key, words in rows.items()}
