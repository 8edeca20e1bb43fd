"""Every flag is honoured or refused, for any task and by both ways of starting."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.lazy import experiment, jax, jnp, models, optax, optimizers
from trainyard_trainer.arguments import Arguments, FlagError, flags, parse_arguments

if TYPE_CHECKING:
    from conftest import Launcher
    from trainyard_trainer.models.task import TrainingTask

PATHS = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

# Flag -> a value for it, and the field of a task that replaces it.
GIVEN: dict[str, tuple[str, str | None]] = {
    "accumulate": ("2", None),
    "augment": ("flip", None),
    "batch_size": ("8", None),
    "best": ("loss:min", None),
    "cache": ("", "data"),
    "checkpoint_every": ("3", None),
    "classes": ("10", "data"),
    "data": ("digits", "data"),
    "decode_processes": ("1", None),
    "early_stopping": ("5", None),
    "ema": ("0.9", None),
    "epochs": ("1", None),
    "evaluate_every": ("1", None),
    "freeze": ("bias", None),
    "global_batch": ("16", None),
    "heartbeat": ("9", None),
    "held_out_data": ("nowhere.npz", "data"),
    "init_from": ("nowhere.safetensors", None),
    "init_skip": ("bias", None),
    "input_shape": ("8,8,1", "data"),
    "job_dir": ("there", None),
    "keep": ("2", None),
    "label_smoothing": ("0.1", "loss"),
    "learning_rate": ("0.1", None),
    "learning_rate_scaling": ("sqrt", None),
    "log_every": ("3", None),
    "lora": ("2", None),
    "lora_on": ("kernel", None),
    "mesh": ("data=1", None),
    "mixup": ("0.2", None),
    "model": ("cnn", "network"),
    "optimizer": ("adam", "optimizer"),
    "parallel": ("pmap", None),
    "precision": ("bfloat16", None),
    "sample": ("5", "data"),
    "save_seconds": ("60", None),
    "seed": ("1", None),
    "sharding": ("off", None),
    "steps": ("4", None),
    "strategy": ("one-device", None),
    "stream": ("", "data"),
    "task": ("own.regression", None),
    "tokenizer": ("300", "data"),
    "warmup": ("0.1", None),
    "weight_decay": ("0.0", "optimizer"),
}
NEEDED = {"init_skip": ("--init-from", "base"), "lora_on": ("--lora", "2")}  # by another flag


def line(flag: str) -> list[str]:
    """The flag with a value, and what it needs."""
    value = GIVEN[flag][0]
    return [f"--{flag.replace('_', '-')}", *([value] if value else []), *NEEDED.get(flag, ())]


def own_task() -> TrainingTask:
    """A task that has all fields of its own."""
    from own import regression

    return dataclasses.replace(regression.task, name="mine")


def bare_task() -> TrainingTask:
    """A task that has a network alone."""
    from own import photos
    from trainyard_trainer.models.task import TrainingTask

    return TrainingTask(photos.network)


@pytest.mark.parametrize("flag", [field.name for field in flags()])
def test_flag_is_refused_by_the_name_of_the_field_that_replaces_it_also_with_its_default_else_accepted(
    flag: str,
) -> None:
    replaced_by = GIVEN[flag][1]
    arguments = parse_arguments(line(flag))
    assert flag in arguments.given
    if flag == "task":  # beside the task of a file
        with pytest.raises(FlagError, match="is given, and this file trains a task of its own"):
            experiment.task_of(arguments, own_task())
    elif replaced_by:
        with pytest.raises(FlagError, match=f"--{flag.replace('_', '-')} .*task mine has its own `{replaced_by}`: "):
            experiment.task_of(arguments, own_task())
    else:
        assert experiment.task_of(arguments, own_task()).network is not None


def test_optimizer_of_the_flags_is_that_of_a_task_without_one() -> None:
    for words, name, decay in (("", "adam", 0.0), ("--optimizer lamb --weight-decay 0.1", "lamb", 0.1)):
        optimizer: Any = experiment.task_of(parse_arguments(words.split()), bare_task()).optimizer
        assert (optimizer.func, optimizer.keywords) == (optimizers.OPTIMIZERS[name], {"decay": decay})


REFUSED = {
    "--mesh data=1 --parallel pmap": "--parallel divides",
    "--strategy one-device --parallel fsdp": "--parallel divides",
    "--strategy one-device --mesh data=2": "--mesh divides several devices",
    "--held-out-data a.npz": "--held-out-data is for files",
    "--cache": "--cache is for files",
    "--stream --data a.tfrecord": "--stream is for TFRecord files on gs://",
    "--tokenizer 300 --data synthetic": "--tokenizer is for text",
    "--input-shape 8,8,1": "--input-shape is given, and the digits are 8,8,1",
    "--classes 10": "--classes is given, and the digits have 10",
    "--global-batch 16 --accumulate 1": "--accumulate is chosen by --global-batch",
    "--init-skip bias": "--init-skip is for --init-from",
    "--lora-on bias": "--lora-on is for --lora",
}


def test_flag_that_changes_nothing_beside_other_flags_is_refused_for_any_task() -> None:
    wrong = {}
    for words, message in REFUSED.items():
        for task in (None, bare_task()):
            try:
                experiment.task_of(parse_arguments(words.split()), task)
                wrong[words] = "accepted"
            except FlagError as error:
                if not str(error).startswith(message):
                    wrong[words] = str(error)
    assert not wrong


# A training notes the flags that are read, but for `replace` of a dataclass, which reads all, and the check.
READS = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from own import regression
from trainyard_trainer import arguments, task

class Noting(arguments.Arguments):
    def __getattribute__(self, name):
        if sys._getframe(1).f_globals["__name__"] not in ("dataclasses", "trainyard_trainer.training.flags"):
            read.add(name)
        return super().__getattribute__(name)

read, words = set(), sys.argv[3:]
parsed = arguments.parse_arguments(words)
task.run(Noting(**vars(parsed)), regression.task)
print(json.dumps(sorted(read)))
"""


def test_every_flag_that_is_accepted_is_read_by_a_training(tmp_path: Path) -> None:
    accepted = ("--global-batch", "50", "--steps", "3", "--log-every", "1", "--job-dir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", READS, *PATHS, *accepted], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    read = set(json.loads(done.stdout.splitlines()[-1]))
    # Read where there is what they are for: a LoRA, files, parameters from elsewhere.
    elsewhere = {"init_skip", "lora_on"}
    assert {flag for flag, (_, field) in GIVEN.items() if field is None} - elsewhere <= read


def test_flags_that_the_data_replaces_are_refused_when_it_is_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.zeros((20, 3, 3, 1), np.float32), labels=np.arange(20) % 4)
    refused = {
        "--input-shape 4,4,1": "--input-shape 4,4,1 is given, and the examples of --data have 3,3,1",
        "--decode-processes 2": "--decode-processes is given, and the examples are in memory",
    }
    from trainyard_trainer.data.datasets import Shard
    from trainyard_trainer.processes.cluster import ClusterSpec
    from trainyard_trainer.training.strategy import OneDevice

    for words, message in refused.items():
        arguments = parse_arguments(["--data", str(tmp_path / "a.npz"), *words.split()])
        task = experiment.task_of(arguments)
        with pytest.raises(FlagError, match=message):
            experiment.prepare(arguments, task, ClusterSpec(), OneDevice(), Shard(0, 1, 1), "auto")


def test_rate_of_an_optimizer_that_has_its_own_is_refused() -> None:
    from trainyard_trainer.training.flags import check_rate

    params = {"w": np.zeros(3, np.float32)}
    assert optimizers.reads_rate(optax.adam, params, "task")
    assert not optimizers.reads_rate(lambda rate: optax.adam(0.1), params, "task")
    check_rate(parse_arguments(["--epochs", "2"]), own_task())
    for flag in ("learning_rate", "learning_rate_scaling", "warmup"):
        with pytest.raises(FlagError, match="does not use the learning rate"):
            check_rate(parse_arguments(line(flag)), own_task())


def test_precision_of_an_own_network_computes_its_layers_in_bfloat16_with_gradients_in_float32() -> None:
    kinds = {}
    for precision in ("float32", "bfloat16"):
        task = experiment.task_of(parse_arguments(["--precision", precision]), own_task())
        model = models.Model(task, (3,), np.float32, 0)
        params, statistics = model.initial(0)

        def loss(params: Any, model: Any = model, statistics: Any = statistics) -> Any:
            outputs, _ = model.train(params, statistics, jnp.ones((4, 3)), jax.random.key(0))
            assert outputs.dtype == jnp.float32
            return outputs.sum()

        traced = jax.make_jaxpr(jax.grad(loss))(model.params.unravel(params))
        assert {str(out.dtype) for out in traced.out_avals} == {"float32"}
        products = [equation for equation in traced.eqns if equation.primitive.name == "dot_general"]
        kinds[precision] = {str(variable.aval.dtype) for equation in products for variable in equation.invars}
    assert kinds == {"float32": {"float32"}, "bfloat16": {"bfloat16"}}


@pytest.mark.long
def test_both_ways_of_starting_refuse_the_same_flag_by_the_same_line_without_a_traceback(
    launcher: Launcher, tmp_path: Path
) -> None:
    file = Path(__file__).parents[1] / "own/regression.py"
    program = file.read_text() + '\nif __name__ == "__main__":\n    from trainyard_trainer import run\n    run(task)\n'
    (tmp_path / "my_model.py").write_text(program)
    python_path = f"{PATHS[0]}:{tmp_path}"
    words = ("--data", "nowhere.npz", "--job-dir", str(tmp_path / "job"))
    started = [
        launcher.alone(*words, command=(str(tmp_path / "my_model.py"),), PYTHONPATH=python_path),
        launcher.alone("--task", "my_model", *words, PYTHONPATH=python_path),
    ]
    lines = []
    for trainer in started:
        assert trainer.wait() == 2, trainer.stderr
        lines += [line for line in trainer.stderr.splitlines() if line.startswith("ERROR")]
        assert "Traceback" not in trainer.stderr
    assert lines[0].replace("the task has", "the task my_model has") == lines[1]
    assert "--data is given, and the task my_model has its own `data`" in lines[1]


def test_arguments_that_are_made_without_a_command_line_have_no_flag_given() -> None:
    assert Arguments().given == frozenset()
    assert "given" not in {field.name for field in flags()}
