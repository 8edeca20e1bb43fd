"""The flags of the training program: each field of `Arguments` is the flag of its name, with its type and default.

training/flags.py refuses those that a training would ignore.
"""

import argparse
import dataclasses
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

from trainyard_trainer.errors import TrainerUsageError

MODEL, DATA, TRAINING, FINE_TUNING, OUTPUT = "model and devices", "data", "training", "fine-tuning", "output"


class FlagError(TrainerUsageError):
    """Flags that do not fit each other."""


def _whole_number(text: str, minimum: int) -> int:
    if not text.lstrip("+-").isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {minimum}")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def positive_int(text: str) -> int:
    return _whole_number(text, minimum=1)


def whole_number(text: str) -> int:
    return _whole_number(text, minimum=0)


def positive_float(text: str) -> float:
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def not_negative(text: str) -> float:
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def fraction(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 0 and below 1")
    return value


def shape(text: str) -> tuple[int, ...]:
    """32,32,3 or 32x32x3."""
    return tuple(positive_int(part) for part in text.replace("x", ",").split(","))


def mesh(text: str) -> tuple[tuple[str, int], ...]:
    """data=2,fsdp=4,tensor=2."""
    sizes = dict(part.partition("=")[::2] for part in text.split(","))
    if not sizes or not sizes.keys() <= {"data", "fsdp", "tensor"}:
        raise argparse.ArgumentTypeError(f"{text} is not sizes of data, fsdp and tensor, such as data=2,fsdp=4")
    return tuple((name, positive_int(size)) for name, size in sizes.items())


def best_metric(text: str) -> tuple[str, str]:
    """accuracy:max or loss:min."""
    name, _, direction = text.partition(":")
    if not name or direction not in ("min", "max"):
        raise argparse.ArgumentTypeError(f"{text} is not METRIC:min or METRIC:max, such as loss:min")
    return name, direction


def augmentation(text: str) -> tuple[str, ...]:
    kinds = tuple(filter(None, text.split(",")))
    if not set(kinds) <= {"crop", "flip"}:
        raise argparse.ArgumentTypeError(f"{text} is not crop, flip or crop,flip")
    return kinds


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is no regular expression: {error}") from error
    return text


def flag(
    default: Any, group: str, help_: str, parse: Callable[[str], Any] | None = None, metavar: str | None = None
) -> Any:
    """A field of `Arguments`. `parse` is for what its type does not say."""
    return dataclasses.field(
        default=default, metadata={"group": group, "help": help_, "parse": parse, "metavar": metavar}
    )


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The flags, by name."""

    model: Literal["cnn", "resnet50", "transformer", "gpt2"] = flag("cnn", MODEL, "the network")
    task: str | None = flag(
        None, MODEL, "a model of your own, in place of --model: the variable `task` of a module, such as my_model",
        metavar="MODULE",
    )  # fmt: skip
    strategy: Literal["auto", "one-device", "mirrored", "multi-worker-mirrored"] = flag(
        "auto", MODEL, "how devices work together; auto uses all devices of this process, or of all processes"
    )
    parallel: Literal["mirrored", "fsdp", "pmap"] = flag(
        "mirrored", MODEL, "how several devices hold the state: each all of it; each a part of it; all of it, by pmap"
    )
    mesh: tuple[tuple[str, int], ...] | None = flag(
        None, MODEL, "divide the devices in place of --parallel, such as data=2,fsdp=4,tensor=2: copies of the state, "
        "its parts, and parts of matrices, by the rules of the task", mesh, "SIZES",
    )  # fmt: skip
    precision: Literal["float32", "bfloat16"] = flag(
        "float32", MODEL, "of the network's computation; parameters and their exchange are float32"
    )

    data: str = flag(
        "digits", DATA, "digits, synthetic, or files: .npz, TFRecord, .txt, with wildcards, or a folder of images by "
        "class; on paths or gs://...",
    )  # fmt: skip
    held_out_data: str | None = flag(
        None, DATA, "files to evaluate on; without, one in ten of the examples in --data", metavar="FILES"
    )
    sharding: Literal["auto", "file", "data", "off"] = flag(
        "auto", DATA, "how processes divide the examples: by files, by examples, not at all; auto: by files if there "
        "are enough",
    )  # fmt: skip
    cache: bool = flag(False, DATA, "keep decoded examples of files in memory")
    stream: bool = flag(
        False, DATA, "read each record of a TFRecord file on gs:// when it is needed, in place of downloading the file"
    )
    augment: tuple[str, ...] = flag(
        (), DATA, "random changes of training images: crop, flip, or crop,flip", augmentation, "KINDS"
    )
    decode_processes: int = flag(
        0, DATA, "processes that read and decode files beside this one, where its threads do not keep up; 0: none",
        whole_number, "N",
    )  # fmt: skip
    tokenizer: str | None = flag(
        None, DATA, "of text: a SentencePiece model, a tokenizer.json of Hugging Face's, or a number of pieces, such "
        "as 4096, to train one on --data (default: bytes)", metavar="FILE|N",
    )  # fmt: skip
    sample: int = flag(
        0, DATA, "tokens of text that a language model continues at each evaluation; 0: none", whole_number, "N"
    )
    input_shape: tuple[int, ...] | None = flag(
        None, DATA, "of one example, unless the data is arrays; JPEG and PNG are resized to it; T for tokens "
        "(default: the model's)", shape, "H,W,C",
    )  # fmt: skip
    classes: int | None = flag(
        None, DATA, "number of labels, if the data does not define it (default: the model's)", positive_int, "K"
    )

    epochs: int | None = flag(
        None, TRAINING, "passes over the training examples (default: 5, or as --steps needs)", positive_int
    )
    steps: int | None = flag(None, TRAINING, "end after so many steps", positive_int, "N")
    batch_size: int = flag(
        16, TRAINING, "examples per step and replica (device); with --accumulate, of one piece", positive_int
    )
    global_batch: int | None = flag(
        None, TRAINING, "examples per step of the whole job, on any number of devices: each computes its part in "
        "pieces of at most --batch-size", positive_int, "N",
    )  # fmt: skip
    accumulate: int = flag(
        1, TRAINING, "each replica computes N pieces of a step one after the other, as N replicas would at once",
        positive_int, "N",
    )  # fmt: skip
    optimizer: Literal["adam", "momentum", "lamb"] | None = flag(None, TRAINING, "(default: the model's)")
    weight_decay: float = flag(
        0.0, TRAINING, "decoupled for adam and lamb; not of biases and scales", not_negative, "RATE"
    )
    learning_rate: float | None = flag(
        None, TRAINING, "for the model's reference batch size (default: the model's)", positive_float, "RATE"
    )
    learning_rate_scaling: Literal["linear", "sqrt", "none"] = flag(
        "linear", TRAINING, "how the rate grows with the global batch"
    )
    warmup: float = flag(
        0.2, TRAINING, "fraction of the steps in which the rate rises to its peak, before it falls as a cosine",
        fraction,
    )  # fmt: skip
    label_smoothing: float = flag(0.0, TRAINING, "share of each label that goes to all classes alike", fraction)
    mixup: float = flag(
        0.0, TRAINING, "mix pairs of images and their losses, by a share of a Beta distribution; 0: never",
        not_negative, "ALPHA",
    )  # fmt: skip
    ema: float = flag(
        0.0, TRAINING, "evaluate and export a moving average of the parameters, such as 0.999; 0: the newest",
        fraction, "DECAY",
    )  # fmt: skip
    seed: int = flag(0, TRAINING, "of the initial parameters and of the shuffling", whole_number)

    init_from: str | None = flag(
        None, FINE_TUNING, "begin with the parameters of a job-dir, of a safetensors file, or of a folder of Hugging "
        "Face's; on a path or gs://...", metavar="URL",
    )  # fmt: skip
    init_skip: str | None = flag(
        None, FINE_TUNING, "parameters of --init-from that are left out, such as a head for other classes", pattern,
        "REGEX",
    )  # fmt: skip
    freeze: str | None = flag(None, FINE_TUNING, "parameters that stay as they are, by name", pattern, "REGEX")
    lora: int = flag(
        0, FINE_TUNING, "train matrices of this rank beside each kernel, and nothing else (arXiv:2106.09685); 0: none",
        whole_number, "RANK",
    )  # fmt: skip
    lora_on: str = flag("kernel$", FINE_TUNING, "the kernels that --lora is for, by name", pattern, "REGEX")

    job_dir: str = flag(
        os.environ.get("TRAINYARD_JOB_DIR") or "./output", OUTPUT,
        "directory of checkpoints and the model: a path or gs://... (default: TRAINYARD_JOB_DIR, else ./output)",
    )  # fmt: skip
    keep: int = flag(3, OUTPUT, "number of checkpoints to keep", positive_int)
    checkpoint_every: int = flag(
        0, OUTPUT, "steps between two checkpoints; 0: one at the end of each epoch", whole_number, "STEPS"
    )
    save_seconds: float = flag(0.0, OUTPUT, "seconds between two further checkpoints; 0: none", not_negative, "SECONDS")
    evaluate_every: int = flag(
        1, OUTPUT, "epochs between two evaluations; 0: only at the end, e.g. with an evaluator", whole_number, "EPOCHS"
    )
    best: tuple[str, str] | None = flag(
        None, OUTPUT, "what makes an evaluation the best, whose checkpoint is kept (default: accuracy:max, or loss:min "
        "if the task has no accuracy)", best_metric, "METRIC:min|max",
    )  # fmt: skip
    early_stopping: int = flag(
        0, OUTPUT, "end when N evaluations in a row were no better than the best, and export the state of the best; "
        "0: never", whole_number, "N",
    )  # fmt: skip
    log_every: int = flag(10, OUTPUT, "steps between two metric lines", positive_int)
    heartbeat: float = flag(
        30.0, OUTPUT, "seconds without output after which a heartbeat line is written; 0: never", not_negative
    )

    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    """The flags of the command line, by name: no flag itself."""


def flags() -> tuple[dataclasses.Field[Any], ...]:
    """The fields that are flags."""
    return tuple(field for field in dataclasses.fields(Arguments) if "group" in field.metadata)


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Parse the flags. An unknown flag or an invalid value ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m trainyard_trainer.task",
        description="Train a model on every device of every process that TF_CONFIG names.",
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    kinds = typing.get_type_hints(Arguments)
    for field in flags():
        group = field.metadata["group"]
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        help_ = field.metadata["help"]
        if field.default not in (None, (), False) and "(default: " not in help_:
            help_ += f" (default: {field.default})"
        # Those that are not given are left out.
        name, options = f"--{field.name.replace('_', '-')}", {"default": argparse.SUPPRESS, "help": help_}
        kind = _choices(kinds[field.name])
        if kinds[field.name] is bool:
            groups[group].add_argument(name, action="store_true", **options)
        elif kind:
            groups[group].add_argument(name, choices=kind, **options)
        else:
            groups[group].add_argument(
                name, type=field.metadata["parse"] or str, metavar=field.metadata["metavar"], **options
            )
    words = [_hyphens(word) for word in (sys.argv[1:] if argv is None else argv)]
    given = vars(parser.parse_args(words))
    return Arguments(**given, given=frozenset(given))


def _choices(kind: Any) -> tuple[str, ...]:
    """The values of a Literal, or of one or None."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return next((typing.get_args(part) for part in kinds if typing.get_origin(part) is Literal), ())


def _hyphens(word: str) -> str:
    """Accept --batch_size=32 for --batch-size=32, as hyperparameter tuning services pass it."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word
