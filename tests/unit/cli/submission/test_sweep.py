"""`--sweep`: from its words to a study, and the study's plan; arguments of a job that runs again."""

from typing import Any

import click
import pytest

from trainyard_cli.output.jobs import study_plan
from trainyard_cli.submission.flag_types import SetArgument
from trainyard_cli.submission.flags import JobFlags, merge
from trainyard_cli.submission.from_job import changed
from trainyard_cli.submission.sweep import Sweep
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.validation import check
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_protocol.job.machines import default_catalog
from trainyard_protocol.job.parsing import parse_training_input


def study(*sweeps: str, config: dict[str, Any] | None = None, **flags: Any) -> dict[str, Any]:
    swept = tuple(Sweep().convert(words, None, None) for words in sweeps)
    data = {"trainingInput": {"pythonModule": "a.b", "hyperparameters": config or {}}}
    merged, _ = merge(data, JobFlags({"sweep": swept, **flags}))
    check(parse_training_input(merged.get("trainingInput")), default_catalog())
    spec: dict[str, Any] = merged.training("hyperparameters")
    return spec


def test_sweep_is_a_grid_over_all_combinations_with_numbers_in_order_and_texts_as_written() -> None:
    spec = study("lr=0.1,1e-2", "--model=small,1,big")
    assert spec == {
        "params": [
            {"parameterName": "lr", "type": "DISCRETE", "discreteValues": [0.01, 0.1]},
            {"parameterName": "model", "type": "CATEGORICAL", "categoricalValues": ["small", "1", "big"]},
        ],
        "algorithm": "GRID_SEARCH",
        "maxTrials": 6,
        "maxParallelTrials": 6,
    }
    assert study_plan.lines(HyperparameterSpec.model_validate(spec))[:2] == [
        "A study by GRID_SEARCH: 6 trials, 6 at a time, over lr and model, ranked by the metric that they "
        "report (--metric names it).",
        "The grid has 6 points.",
    ]


def test_sweep_replaces_parameters_and_keeps_goal_metric_and_parallel_trials_of_the_config() -> None:
    config = {"goal": "MINIMIZE", "maxParallelTrials": 2, "maxTrials": 40, "params": [{"parameterName": "x"}]}
    spec = study("lr=1,2", config=config, metric="loss")
    assert (spec["goal"], spec["maxParallelTrials"], spec["maxTrials"]) == ("MINIMIZE", 2, 2)
    assert spec["hyperparameterMetricTag"] == "loss"
    assert study(f"lr={','.join(map(str, range(50)))}")["maxParallelTrials"] == 16


@pytest.mark.parametrize(
    ("words", "says"),
    [("lr", "must look like NAME=VALUE,VALUE,..."), ("lr=1,,2", "has an empty value"), ("lr=1,2,1.0", "has 1 twice"),
     ("lr=1,1e999", "too large")],
)  # fmt: skip
def test_sweep_of_unusable_words_is_a_usage_error(words: str, says: str) -> None:
    with pytest.raises(click.BadParameter, match=says):
        Sweep().convert(words, None, None)


def test_sweep_with_a_flag_twice_or_too_many_trials_is_refused() -> None:
    many = ",".join(map(str, range(200)))
    with pytest.raises(InvalidArgument, match="lr is given 2 times"):
        study("lr=1", "lr=2")
    with pytest.raises(InvalidArgument, match="makes 40000 trials; a study has at most 10000"):
        study(f"a={many}", f"b={many}")


@pytest.mark.parametrize(
    ("args", "changes", "after"),
    [
        ("--lr 0.1 --epochs 5", "lr=0.2", "--lr 0.2 --epochs 5"),
        ("--lr=0.1 --epochs=5", "lr=0.2", "--lr=0.2 --epochs=5"),
        ("--lr=0.1", "--lr=0.2", "--lr=0.2"),
        ("--shift -1.5", "shift=-2", "--shift -2"),
        ("--batch-size 8", "batch_size=16", "--batch-size 16"),
        ("-e 3 --name e", "-e=4", "-e 4 --name e"),
        ("lr=0.1 model=cnn", "model=mlp", "lr=0.1 model=mlp"),
        ("lr=0.1 model=cnn", "seed=7", "lr=0.1 model=cnn seed=7"),
        ("--lr 0.1", "seed=7", "--lr 0.1 --seed=7"),
        ("", "seed=7", "--seed=7"),
        ("--verbose --lr 0.1", "verbose=2", "--verbose=2 --lr 0.1"),
        ("--lr 0.1 --lr 0.2", "lr=0.3", "--lr 0.3 --lr 0.3"),
        ("train --data train", "train=x", "train --data train --train=x"),
        ("--text a=b", "text=c=d", "--text c=d"),
    ],
)
def test_value_of_an_argument_is_changed_as_it_is_written(args: str, changes: str, after: str) -> None:
    given = [SetArgument().convert(change, None, None) for change in changes.split()]
    assert changed(args.split(), given) == after.split()


@pytest.mark.parametrize("text", ["lr", "=1", "--=1"])
def test_change_without_a_name_and_a_value_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="must look like NAME=VALUE"):
        SetArgument().convert(text, None, None)
