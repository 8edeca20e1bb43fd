"""The check that each flag that is given is honoured, or refused with a sentence.

A flag is refused where a field of the task replaces it, or where it changes nothing without another flag. It is the
same for `--task MODULE`, for a task that is run by its own file, and for --model.
"""

from collections.abc import Callable

from trainyard_trainer.arguments import Arguments, FlagError
from trainyard_trainer.data.datasets import Dataset
from trainyard_trainer.models.checks import label
from trainyard_trainer.models.task import TrainingTask, cross_entropy

GENERATED = ("digits", "synthetic")
_RATE = "learning_rate", "learning_rate_scaling", "warmup"

REPLACED: dict[str, tuple[str, str]] = {
    "model": ("network", "leave --model out"),
    "optimizer": ("optimizer", "leave one of them out"),
    "weight_decay": ("optimizer", "write optimizer=lambda rate: optax.adamw(rate, weight_decay=0.01)"),
    "label_smoothing": ("loss", "smooth the labels there"),
    "data": ("data", "leave one of them out"),
    "held_out_data": ("data", "return the held-out examples there"),
    "cache": ("data", "those examples are in memory"),
    "stream": ("data", "those examples are in memory"),
    "tokenizer": ("data", "encode the text there"),
    "sample": ("data", "print samples by the field `on_evaluation`"),
    "input_shape": ("data", "its arrays have their shape"),
    "classes": ("data", "give from_arrays the names of the labels"),
}
"""Flag -> the field of a task that replaces it, and what to do."""


def name(flag: str) -> str:
    return f"--{flag.replace('_', '-')}"


def check_flags(arguments: Arguments, task: TrainingTask, is_own: bool) -> None:
    """Raise FlagError if a given flag would be ignored.

    Args:
        is_own: the task is the user's, and no value of --model.
    """
    fields = {
        "network": is_own,
        "optimizer": is_own and task.optimizer is not None,
        "loss": task.loss is not cross_entropy,
        "data": task.data is not None,
    }
    for flag, (field, advice) in REPLACED.items():
        if flag in arguments.given and fields[field]:
            raise FlagError(f"{name(flag)} is given, and the {label(task)} has its own `{field}`: {advice}.")
    for flag, (ignored, without) in _NEEDS.items():
        if flag in arguments.given and ignored(arguments):
            raise FlagError(f"{name(flag)} {without}.")


def check_rate(arguments: Arguments, task: TrainingTask) -> None:
    """Raise FlagError if the flags of the learning rate are given, and the optimizer of the task has another rate."""
    for flag in _RATE:
        if flag in arguments.given:
            raise FlagError(
                f"{name(flag)} is given, and `optimizer` of the {label(task)} does not use the learning rate that "
                "it gets: write optimizer=lambda rate: optax.adam(rate), or leave the flag out."
            )


def check_data_flags(arguments: Arguments, dataset: Dataset) -> None:
    """Raise FlagError if a given flag would be ignored, as the data has what it says."""
    shape, classes = arguments.input_shape, arguments.classes
    if shape is not None and shape != dataset.input_shape:
        raise FlagError(
            f"--input-shape {','.join(map(str, shape))} is given, and the examples of --data have "
            f"{','.join(map(str, dataset.input_shape))}: leave it out."
        )
    if classes is not None and classes != len(dataset.label_names):
        raise FlagError(f"--classes {classes} is given, and --data has {len(dataset.label_names)}: leave it out.")
    if arguments.decode_processes and dataset.train.in_memory and not arguments.augment:
        raise FlagError("--decode-processes is given, and the examples are in memory as they are: leave it out.")


def _is_on_bucket(arguments: Arguments) -> bool:
    urls = (arguments.data, arguments.held_out_data or "")
    return any(url.startswith("gs://") and not url.endswith((".npz", ".txt")) for url in urls)


def _is_generated(arguments: Arguments) -> bool:
    return arguments.data in GENERATED


_NEEDS: dict[str, tuple[Callable[[Arguments], bool], str]] = {
    "parallel": (
        lambda arguments: arguments.mesh is not None or arguments.strategy == "one-device",
        "divides the devices in its own way: leave out --mesh and --strategy one-device, or this flag",
    ),
    "mesh": (
        lambda arguments: arguments.strategy == "one-device",
        "divides several devices, and --strategy one-device has one: leave one of them out",
    ),
    "held_out_data": (_is_generated, "is for files, and --data is not: name files by --data, or leave it out"),
    "cache": (_is_generated, "is for files, and --data is not: leave it out"),
    "stream": (lambda arguments: not _is_on_bucket(arguments), "is for TFRecord files on gs://: leave it out"),
    "tokenizer": (_is_generated, "is for text (.txt), and --data is not: leave it out"),
    "input_shape": (lambda arguments: arguments.data == "digits", "is given, and the digits are 8,8,1: leave it out"),
    "classes": (lambda arguments: arguments.data == "digits", "is given, and the digits have 10: leave it out"),
    "accumulate": (
        lambda arguments: arguments.global_batch is not None, "is chosen by --global-batch: leave one of them out"
    ),
    "init_skip": (lambda arguments: arguments.init_from is None, "is for --init-from: give that too, or leave it out"),
    "lora_on": (lambda arguments: not arguments.lora, "is for --lora: give a rank too, or leave it out"),
}  # fmt: skip
"""Flag -> whether other flags make it change nothing, and the sentence."""
