"""Sentences for the mistakes that are easily made in a task, in place of an exception from inside a library."""

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from trainyard_trainer.errors import TaskError
from trainyard_trainer.models.kinds import accepts, kind, library_of
from trainyard_trainer.models.task import NetworkFunctions, TrainingTask

FIELDS = ("event", "step", "steps", "epoch", "epochs", "loss", "examples_per_second")
"""Names of a progress line (output/report.py) that no metric may have."""

_NOT_OF_THE_USER = sys.stdlib_module_names | {
    "chex", "equinox", "flax", "jax", "jaxlib", "numpy", "optax", "trainyard_trainer"
}  # fmt: skip
_FUNCTIONS = {  # field -> names of its arguments
    "loss": ("outputs", "labels"),
    "exported": ("outputs",),
    "data": (),
    "optimizer": ("learning_rate",),
    "weights": ("labels",),
    "on_evaluation": ("evaluation",),
}
_NETWORK = "network=linen(Network()) for a module of flax.linen, NetworkFunctions(init, apply) for any other"
_HINTS = {
    "network": f"Write {_NETWORK}, or a function of a DataSpec that returns one of both.",
    "loss": "A function of JAX returns the loss of each example: loss=lambda outputs, labels: (outputs - labels) ** 2.",
    "data": "A function returns from_arrays(...): data=load, without a call. Files are for --data.",
    "optimizer": "A function makes it of a learning rate: optimizer=lambda rate: optax.adam(rate).",
}


def label(task: TrainingTask) -> str:
    """The task in a message."""
    return f"task {task.name}" if task.name else "task"


@contextlib.contextmanager
def explained(sentence: str) -> Iterator[None]:
    """Raise TaskError with the sentence in place of an exception in which no code of the user takes part.

    A traceback through the user's own code is what is needed to mend it: it stays, and ends with the sentence.
    """
    try:
        yield
    except TaskError:
        raise
    except Exception as error:
        frames, traceback = [], error.__traceback__
        while traceback is not None:
            frames.append(str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
            traceback = traceback.tb_next
        if not _NOT_OF_THE_USER.issuperset(frames):
            error.add_note(sentence)
            raise
        raise TaskError(f"{sentence} ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]})") from error


def check_task(task: Any) -> None:
    """Raises TaskError if a field has another kind of value than it is for."""
    if not isinstance(task, TrainingTask):
        raise TaskError(f"The task is {kind(task)}; it is an object: task = TrainingTask(network=linen(Network())).")
    if not isinstance(task.network, NetworkFunctions):
        if not callable(task.network) or isinstance(task.network, type) or library_of(task.network):
            raise _wrong(task, "network", f"is {kind(task.network)}")
        _check_arguments(task, "network", task.network, ("data",))
    for field, names in _FUNCTIONS.items():
        function = getattr(task, field)
        if function is None and field not in ("loss", "exported"):
            continue
        if not callable(function):
            raise _wrong(task, field, f"is {kind(function)}")
        _check_arguments(task, field, function, names)
    if not isinstance(task.metrics, Mapping):
        raise TaskError(
            f"The {label(task)}: `metrics` is {kind(task.metrics)}; it is a dict, of functions by their names."
        )
    for name, metric in task.metrics.items():
        if name in FIELDS or not isinstance(name, str):
            raise TaskError(
                f"The {label(task)}: the metric {name!r} needs another name. Progress lines have their own values "
                f"under {', '.join(FIELDS)}."
            )
        if not callable(metric):
            raise TaskError(
                f"The {label(task)}: the metric {name!r} is {kind(metric)}; it is a function, such as the loss."
            )
        _check_arguments(task, f"metrics[{name!r}]", metric, _FUNCTIONS["loss"])
    _check_numbers(task)


def check_functions(task: TrainingTask, network: Any) -> None:
    """Raises TaskError unless a network is NetworkFunctions of two functions."""
    if not isinstance(network, NetworkFunctions):
        raise TaskError(f"The {label(task)}: the function `network` returns {kind(network)}. {_HINTS['network']}")
    for name, names in {"init": ("key", "inputs"), "apply": ("parameters", "statistics", "inputs", "key")}.items():
        function = getattr(network, name)
        if not callable(function):
            raise TaskError(
                f"The {label(task)}: `{name}` of its NetworkFunctions is {kind(function)}; it is a function."
            )
        _check_arguments(task, f"network.{name}", function, names)


def check_pair(task: TrainingTask, name: str, result: Any, first: str) -> None:
    """Raises TaskError unless a function of a network has returned a pair."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TaskError(
            f"The {label(task)}: `{name}` of its network returns {kind(result)}; it returns ({first}, statistics), "
            "with {} for no statistics."
        )


def shapes(tree: Any) -> str:
    """Type and shape of each array, for a message."""
    import jax

    described = jax.tree.map(
        lambda leaf: f"{leaf.dtype} {list(leaf.shape)}" if hasattr(leaf, "dtype") else kind(leaf), tree
    )
    return described if isinstance(described, str) else str(described).replace("'", "")


def _check_numbers(task: TrainingTask) -> None:
    numbers: dict[str, Callable[[Any], bool]] = {
        "learning_rate": lambda value: isinstance(value, int | float) and value > 0,
        "reference_batch_size": lambda value: isinstance(value, int) and value > 0,
        "classes": lambda value: isinstance(value, int) and value >= 0,
        "input_shape": lambda value: isinstance(value, tuple | list) and all(isinstance(size, int) for size in value),
        "name": lambda value: isinstance(value, str),
    }
    allowed = {
        "learning_rate": "a number above 0: the schedule is that of --warmup, or one that `optimizer` makes itself",
        "reference_batch_size": "a whole number above 0",
        "classes": "a whole number",
        "input_shape": "a tuple of whole numbers, such as (28, 28, 1)",
        "name": "a text",
    }
    for field, fits in numbers.items():
        if not fits(value := getattr(task, field)):
            raise TaskError(f"The {label(task)}: `{field}` is {value!r}; it is {allowed[field]}.")
    for rule in task.sharding if isinstance(task.sharding, Sequence) else [task.sharding]:
        try:
            pattern, spec = rule
            re.compile(pattern)
        except (TypeError, ValueError, re.error):
            spec = None
        if not isinstance(spec, PartitionSpec):
            raise TaskError(
                f"The {label(task)}: `sharding` has {rule!r}; a rule is a regular expression and a PartitionSpec, such "
                'as ("kernel$", PartitionSpec(None, "tensor")).'
            )


def _wrong(task: TrainingTask, field: str, problem: str) -> TaskError:
    hint = _HINTS.get(field) or f"A function has the arguments ({', '.join(_FUNCTIONS[field])})."
    return TaskError(f"The {label(task)}: `{field}` {problem}. {hint}")


def _check_arguments(task: TrainingTask, field: str, function: Any, names: Sequence[str]) -> None:
    if not accepts(function, names, {}):
        given = ", ".join(names)
        raise TaskError(
            f"The {label(task)}: `{field}` is called with ({given}), and takes {inspect.signature(function)}. Change "
            "its arguments."
        )
