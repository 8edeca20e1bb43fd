"""Easy mistakes in a task are refused with a sentence; an exception of the user's own code keeps its traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.lazy import experiment, jax, models, optax, optimizers
from trainyard_trainer.arguments import parse_arguments
from trainyard_trainer.data.datasets import DataError, Dataset, from_arrays
from trainyard_trainer.errors import TaskError

PATHS = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]
INPUTS = np.random.default_rng(0).random((40, 4), np.float32)
LABELS = np.arange(40, dtype=np.int32) % 10


def data() -> Dataset:
    return from_arrays(INPUTS, LABELS, INPUTS[:9], LABELS[:9])


def networks() -> dict[str, tuple[Any, str]]:
    """Networks as they are written for other libraries, and what is said of each."""
    import equinox as eqx
    from flax import linen as nn
    from flax import nnx

    from own.regression import RegressionNetwork
    from trainyard_trainer import NetworkFunctions, linen

    class WithoutTrain(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(10)(x)

    functions: Any = NetworkFunctions
    ready = nnx.Linear(4, 10, rngs=nnx.Rngs(0))
    init: Any = lambda key, inputs: ({"w": inputs[0]}, {})  # noqa: E731
    apply: Any = lambda parameters, statistics, inputs, key: (inputs, {})  # noqa: E731
    return {
        "linen": (RegressionNetwork(), "`network` is a module of flax.linen (RegressionNetwork). Write network=linen("),
        "class": (RegressionNetwork, "`network` is the class RegressionNetwork. Write network=linen(Network())"),
        "class in linen": (linen(RegressionNetwork), "such as linen(RegressionNetwork()), and got the class"),  # type: ignore[arg-type]
        "nnx": (ready, "`network` is a module of flax.nnx (Linear). Write"),
        "nnx in linen": (linen(ready), "got a module of flax.nnx (Linear). Any other network is NetworkFunctions("),  # type: ignore[arg-type]
        "equinox": (eqx.nn.Linear(4, 10, key=jax.random.key(0)), "`network` is a module of Equinox (Linear)"),
        "tuple": ((init, init), "`network` is a tuple. Write"),
        "no train": (linen(WithoutTrain()), "WithoutTrain.__call__ has no argument `train`"),
        "layers without train": (linen(nn.Sequential([nn.Dense(10)])), "Sequential.__call__ has no argument `train`"),
        "function of nothing": (lambda: linen(RegressionNetwork()), "`network` is called with (data), and takes ()"),
        "function of a module": (lambda spec: RegressionNetwork(), "the function `network` returns a module of flax"),
        "init alone": (functions(lambda key, x: {"w": x[0]}, apply), "`init` of its network returns a dict"),
        "apply of two": (functions(init, lambda p, x: (x, {})), "`network.apply` is called with (parameters,"),
        "outputs alone": (functions(init, lambda p, s, x, k: x), "`apply` of its network returns an array"),
        "no parameters": (functions(lambda key, x: ({}, {}), apply), "its network has no parameters"),
    }


def test_network_of_another_kind_is_named_with_what_to_write() -> None:
    from trainyard_trainer import TrainingTask

    wrong = {}
    for name, (network, message) in networks().items():
        try:
            task = experiment.task_of(parse_arguments([]), TrainingTask(network, data=data))
            model = models.Model(task, (4,), np.float32, 0)
            jax.eval_shape(model.infer, model.params.shapes, model.statistics.shapes, np.zeros((2, 4), np.float32))
            wrong[name] = "accepted"
        except TaskError as error:
            if message not in str(error):
                wrong[name] = str(error)
    assert not wrong


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "ready optimizer": ({"optimizer": lambda: optax.adam(0.1)}, "`optimizer` is an object of optax (Gradient"),
    "optimizer of Keras": ({"optimizer": lambda: "adam"}, "`optimizer` is a str. A function makes it of a learning"),
    "loss of Keras": ({"loss": lambda: "mse"}, "`loss` is a str. A function of JAX returns the loss of each example"),
    "loss of one": ({"loss": lambda: lambda outputs: outputs}, "`loss` is called with (outputs, labels), and takes"),
    "list of metrics": ({"metrics": lambda: [max]}, "`metrics` is a list; it is a dict"),
    "metric's name": ({"metrics": lambda: {"step": max}}, "the metric 'step' needs another name. Progress lines have"),
    "metric of Keras": ({"metrics": lambda: {"accuracy": "accuracy"}}, "the metric 'accuracy' is a str"),
    "loaded data": ({"data": data}, "`data` is a Dataset. A function returns from_arrays(...)"),
    "data's path": ({"data": lambda: "a.npz"}, "`data` is a str. A function returns from_arrays(...): data=load"),
    "schedule": ({"learning_rate": lambda: optax.constant_schedule(0.1)}, "it is a number above 0: the schedule is"),
    "shape": ({"input_shape": lambda: 28}, "`input_shape` is 28; it is a tuple of whole numbers"),
    "rule": ({"sharding": lambda: ["kernel$"]}, "`sharding` has 'kernel$'; a rule is a regular expression and a"),
    "no task": ({}, "The task is a module of flax.linen (RegressionNetwork); it is an object: task = TrainingTask("),
}  # fmt: skip


def test_field_of_another_kind_is_named_with_what_it_is_for() -> None:
    from own.regression import RegressionNetwork
    from trainyard_trainer import TrainingTask, linen

    wrong = {}
    for name, (fields, message) in FIELDS.items():
        made = {field: value() for field, value in fields.items()}
        task: Any = TrainingTask(linen(RegressionNetwork()), **made) if made else RegressionNetwork()
        try:
            experiment.task_of(parse_arguments([]), task)
            wrong[name] = "accepted"
        except TaskError as error:
            if message not in str(error):
                wrong[name] = str(error)
    assert not wrong


ARRAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "texts": (
        lambda: from_arrays(np.array(["a", "b"]), LABELS[:2], INPUTS, LABELS),
        "training inputs are a ndarray of <U1; allowed is an array of numbers",
    ),
    "more labels": (lambda: from_arrays(INPUTS[:2], LABELS, INPUTS, LABELS), "data has 2 inputs and 40 labels"),
    "large label": (lambda: from_arrays(INPUTS[:1], np.array([2**40]), INPUTS, LABELS), "int32"),
    "tuple of inputs": (
        lambda: from_arrays((INPUTS, INPUTS), LABELS, INPUTS, LABELS),  # type: ignore[arg-type]
        "The training inputs are a tuple of 2 arrays. Several arrays are a dict",
    ),
    "tuple of labels": (
        lambda: from_arrays(INPUTS, (LABELS, LABELS), INPUTS, LABELS),  # type: ignore[arg-type]
        "The training labels are a tuple of 2 arrays. Several arrays are a dict",
    ),
    "several lengths": (
        lambda: from_arrays([[1.0, 2.0], [1.0]], LABELS[:2], INPUTS, LABELS),  # type: ignore[arg-type]
        "The training inputs are a list of examples of several shapes; all must have one: pad or cut them",
    ),
    "nothing held out": (
        lambda: from_arrays(INPUTS, LABELS, INPUTS[:0], LABELS[:0]),
        "The held-out data has 0 inputs and 0 labels",
    ),
    "held-out shape": (
        lambda: from_arrays(INPUTS, LABELS, INPUTS[:, :3], LABELS),
        "The held-out inputs are float32 [3] each, and those of training float32 [4]: both must be alike",
    ),
    "held-out labels": (
        lambda: from_arrays(INPUTS, LABELS, INPUTS, LABELS.astype(np.float64)),
        "The held-out labels are float32 [] each, and those of training int32 []",
    ),
}


def test_arrays_that_are_no_examples_are_refused_with_what_they_are() -> None:
    wrong = {}
    for name, (make, message) in ARRAYS.items():
        try:
            make()
            wrong[name] = "accepted"
        except DataError as error:
            if message not in str(error):
                wrong[name] = str(error)
    assert not wrong
    tuple_of_numbers: Any = tuple(LABELS.tolist())
    assert len(from_arrays(INPUTS, tuple_of_numbers, INPUTS, tuple_of_numbers).train) == len(LABELS)


LOSSES: dict[str, tuple[tuple[int, ...], np.ndarray[Any, Any], str]] = {
    "one-hot": ((2, 10), np.eye(10, dtype=np.int32)[:2], "Of one-hot vectors, give the positions: labels.argmax("),
    "floats": ((2, 10), np.zeros(2, np.float32), "the labels are float32 [2], the outputs [2, 10]"),
    "one output": ((2,), np.zeros(2, np.int32), "the labels are int32 [2], the outputs [2]"),
    "tokens": ((2, 5, 10), np.zeros((2, 4), np.int32), "the labels are int32 [2, 4], the outputs [2, 5, 10]"),
}  # fmt: skip


def test_outputs_and_labels_that_do_not_fit_the_loss_are_refused_with_both_shapes() -> None:
    from trainyard_trainer.models.task import cross_entropy

    for shape, labels, message in LOSSES.values():
        with pytest.raises(TaskError) as raised:
            cross_entropy(np.zeros(shape, np.float32), labels)  # type: ignore[arg-type]
        assert message in str(raised.value)


def regression_model(**fields: Any) -> models.Model:
    from own.regression import RegressionNetwork
    from trainyard_trainer import TrainingTask, linen

    return models.Model(TrainingTask(linen(RegressionNetwork()), metrics={}, **fields), (4,), np.float32, 0)


def test_exception_of_the_users_own_code_stays_and_ends_with_what_it_was_called_with() -> None:
    def loss(outputs: Any, labels: Any) -> Any:
        return outputs["logits"]  # of a task with another network

    exec_in_main: dict[str, Any] = {"__name__": "__main__", "loss": loss}
    exec("def own(outputs, labels): return loss(outputs, labels)", exec_in_main)  # as a user's file
    model = regression_model(loss=exec_in_main["own"])
    with pytest.raises(IndexError) as raised:
        model.measure(np.zeros(3, np.float32), np.zeros(3, np.float32), np.ones(3, np.float32))  # type: ignore[arg-type]
    assert "The task: loss cannot be computed of outputs float32 [3] and labels float32 [3]." in raised.value.__notes__


OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "line search": (lambda rate: optax.lbfgs(), "missing 2 required keyword-only arguments: 'grad' and 'value_fn'"),
    "each example": (lambda rate: optax.contrib.differentially_private_aggregate(1.0, 1.0, key=0), "ValueError: "),
    "other parameters": (lambda rate: optax.lookahead(optax.sgd(rate), 5, 0.5), "AttributeError: "),
}


def test_optimizer_that_needs_more_than_a_step_has_is_refused_before_the_first_one() -> None:
    params = {"w": np.zeros((3, 2), np.float32)}
    for make, message in OPTIMIZERS.values():
        with pytest.raises(TaskError) as raised:
            optimizers.reads_rate(make, params, "task mine")
        assert "The task mine: its optimizer cannot be used. A step has the mean gradient" in str(raised.value)
        assert message in str(raised.value)
    with pytest.raises(TaskError, match="`optimizer` of the task returns None; it is a function of the learning rate"):
        optimizers.reads_rate(lambda rate: None, params, "task")


RUNS = """
import json, sys, tempfile
sys.path[:0] = sys.argv[1:3]
import jax.numpy as jnp, numpy as np, optax
from trainyard_trainer import NetworkFunctions, TrainingTask, from_arrays, task as program
from trainyard_trainer.arguments import parse_arguments
from trainyard_trainer.errors import TrainerError

inputs, labels = np.random.default_rng(0).random((60, 4), np.float32), np.arange(60, dtype=np.int32) % 10
network = NetworkFunctions(
    lambda key, x: ({"w": jnp.zeros((4, 10))}, {}),
    lambda p, s, x, key: ((x["a"] if isinstance(x, dict) else x) @ p["w"], s),
)

def put(array, row, value):
    changed = array.copy()
    changed[row] = value
    return changed

def task(x=inputs, y=labels, held_x=inputs[:20], held_y=labels[:20], **fields):
    return TrainingTask(network, data=lambda: from_arrays(x, y, held_x, held_y), **fields)

plain = lambda outputs, labels: optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
finite = lambda outputs, labels: jnp.nan_to_num(outputs[:, 0])
several = task({"a": put(inputs, 7, np.inf), "b": inputs}, held_x={"a": inputs[:20], "b": inputs[:20]})
tasks = {
    "label above": task(y=put(labels, 50, 10)),
    "label of an own loss": task(y=put(labels, 50, 10), loss=plain),
    "held-out label": task(held_y=put(labels[:20], 3, 99)),
    "nan": task(put(inputs, 33, np.nan)),
    "inf of several": several,
    "held-out nan": task(held_x=put(inputs[:20], 4, np.nan)),
    "diverging": task(optimizer=lambda rate: optax.sgd(1e38)),
    "nan that the loss ignores": task(
        put(inputs, 33, np.nan), loss=finite, optimizer=lambda rate: optax.set_to_zero(), metrics={}
    ),
}
for name, one in tasks.items():
    words = ["--job-dir", tempfile.mkdtemp(dir=sys.argv[3]), "--epochs", "2", "--log-every", "3", "--keep", "1"]
    try:
        program.run(parse_arguments(words), one)
        print(json.dumps(["result", name, 0, ""]))
    except TrainerError as error:
        print(json.dumps(["result", name, error.exit_code, str(error)]))
"""

ENDS: dict[str, tuple[int, str]] = {
    "label above": (2, "The label of example 50 is 10; the 10 classes are 0 to 9."),
    "label of an own loss": (2, "The label of example 50 is 10, and the network has 10 outputs."),
    "held-out label": (2, "The label of example 3 is 99; the 10 classes are 0 to 9."),
    "nan": (2, "The inputs of example 33 have nan."),
    "inf of several": (2, "The inputs 'a' of example 7 have inf."),
    "held-out nan": (0, ""),
    "diverging": (1, "try a lower --learning-rate. The inputs and labels that this process has read"),
    "nan that the loss ignores": (0, ""),
}


def test_loss_that_is_not_finite_is_told_from_examples_that_are_not_and_from_labels_outside(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNS, *PATHS, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["result"')]
    ends = {name: (code, message) for _, name, code, message in results}
    assert ends.keys() == ENDS.keys()
    wrong = {
        name: ends[name] for name, (code, text) in ENDS.items() if ends[name][0] != code or text not in ends[name][1]
    }
    assert not wrong
    assert "The loss of the held-out data is nan. The inputs of example 4 have nan." in done.stderr
    assert "learning-rate" not in "".join(message for code, message in ends.values() if code == 2)
