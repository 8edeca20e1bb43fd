"""Clones of a job, and the study around it."""

import shlex
import subprocess

import pytest

from trainyard_protocol.job.config import text as config_text
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_server.capabilities.config_editor import clone as cloning
from trainyard_server.domain.configs.sweep import around


@pytest.mark.parametrize(
    ("like", "taken", "free"),
    [
        ("train", {"train"}, "train_2"),
        ("train", {"train", "train_2"}, "train_3"),
        ("train_2", {"train", "train_2"}, "train_3"),
        ("resnet50_lr0_1", {"resnet50_lr0_1"}, "resnet50_lr0_1_2"),
        ("lr_0_01_1", {"lr_0_01", "lr_0_01_1"}, "lr_0_01_1_2"),  # clones begin at 2
        ("sweep_3", {"sweep_3"}, "sweep_3_2"),
        ("train_20261120_142501", {"train_20261120_142501"}, "train_20261120_142501_2"),
        ("train_", {"train_"}, "train_2"),
        ("a" * 128, {"a" * 128}, "a" * 126 + "_2"),
    ],
)
def test_next_id_continues_the_name(like: str, taken: set[str], free: str) -> None:
    assert cloning.next_id(like, taken.__contains__) == free


@pytest.mark.parametrize("argument", ["it's $(touch here) `x`", "CONFIG", "a\nCONFIG\nb", "\\"])
def test_clone_command_gives_a_shell_the_same_config(argument: str) -> None:
    sent = {"pythonModule": "t", "args": [argument, "--last"]}
    commands = cloning.commands("p", "a", "a_2", sent, {}, ["master-replica-0"])
    (clone,) = [one.command for one in commands if one.name == "clone"]
    script = f'trainyard() {{ printf "%s\\n" "$*"; cat; }}\n{clone}\n'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    command, _, text = done.stdout.partition("\n")
    assert shlex.split(command) == ["jobs", "submit", "training", "a_2", "--project", "p", "--config", "-"]
    assert config_text.read(text).data["trainingInput"] == sent


def test_ranges_are_around_the_numbers_that_are_a_choice() -> None:
    args = ["--learning-rate", "0.03", "--layers=4", "--seed", "7", "--num_epochs=5", "--opt", "adam", "--zero", "0"]
    study = around(args, "val_loss")
    assert study is not None
    assert (study["goal"], study["hyperparameterMetricTag"]) == ("MINIMIZE", "val_loss")
    low = {"parameterName": "learning-rate", "type": "DOUBLE", "minValue": 0.01, "maxValue": 0.09}
    whole = {"parameterName": "layers", "type": "INTEGER", "minValue": 2, "maxValue": 8}
    assert study["params"] == [low | {"scaleType": "UNIT_LOG_SCALE"}, whole | {"scaleType": "UNIT_LINEAR_SCALE"}]
    HyperparameterSpec.model_validate(study)


def test_ranges_are_around_overrides_of_hydra() -> None:
    study = around(["model.lr=0.03", "+trainer.max_steps=10", "db=mysql"], "accuracy")
    assert study is not None
    low = {"parameterName": "model.lr", "type": "DOUBLE", "minValue": 0.01, "maxValue": 0.09}
    assert study["params"][:1] == [low | {"scaleType": "UNIT_LOG_SCALE"}]
    assert (study["argumentStyle"], study["goal"]) == ("OVERRIDES", "MAXIMIZE")
