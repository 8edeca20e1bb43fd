"""The flags of the training program."""

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The flags; each field is a flag of the same name."""

    model: Literal["cnn", "resnet50", "transformer"]
    task: str | None
    strategy: Literal["auto", "one-device", "mirrored", "multi-worker-mirrored", "parameter-server"]
    parallel: Literal["shard-map", "fsdp", "pmap"]
    precision: Literal["float32", "bfloat16"]
    data: str
    held_out_data: str | None
    sharding: Literal["auto", "file", "data", "off"]
    cache: bool
    stream: bool
    augment: tuple[Literal["crop", "flip"], ...]
    input_shape: tuple[int, ...] | None
    classes: int | None
    epochs: int | None
    steps: int | None
    batch_size: int
    accumulate: int
    optimizer: Literal["adam", "momentum", "lamb"] | None
    weight_decay: float
    learning_rate: float | None
    learning_rate_scaling: Literal["linear", "sqrt", "none"]
    warmup: float
    seed: int
    job_dir: str
    keep: int
    checkpoint_every: int
    save_seconds: float
    evaluate_every: int
    best: tuple[str, Literal["min", "max"]] | None
    early_stopping: int
    histograms: bool
    profile: tuple[int, int] | None
    log_every: int
    heartbeat: float


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Parse the flags. An unknown flag or an invalid value ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m trainyard_trainer.task",
        description="Train a model on every device of every process that TF_CONFIG names.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    net = parser.add_argument_group("model and devices")
    which = net.add_mutually_exclusive_group()
    which.add_argument("--model", choices=("cnn", "resnet50", "transformer"), default="cnn", help="the network")
    which.add_argument(
        "--task", metavar="MODULE",
        help="a model of your own: the variable `task` of a module, such as trainer.my_model",
    )  # fmt: skip
    net.add_argument(
        "--strategy",
        choices=("auto", "one-device", "mirrored", "multi-worker-mirrored", "parameter-server"),
        default="auto",
        help="how devices work together; auto uses all devices of this process, of all processes, or of workers "
        "with parameter servers",
    )  # fmt: skip
    net.add_argument(
        "--parallel", choices=("shard-map", "fsdp", "pmap"), default="shard-map",
        help="how several devices hold the state: each all of it; each a part of it; all of it, by pmap",
    )  # fmt: skip
    net.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32",
        help="of the network's computation; parameters and their exchange are float32",
    )  # fmt: skip

    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", default="digits",
        help="digits, synthetic, or files: .npz, TFRecord, ArrayRecord, .txt, with wildcards, or a folder of images by "
        "class; on paths or gs://...",
    )  # fmt: skip
    data.add_argument(
        "--held-out-data", metavar="FILES",
        help="files to evaluate on; without, one in ten of the examples in --data",
    )  # fmt: skip
    data.add_argument(
        "--sharding", choices=("auto", "file", "data", "off"), default="auto",
        help="how processes divide the examples: by files, by examples, not at all; auto: by files if there are enough",
    )  # fmt: skip
    data.add_argument("--cache", action="store_true", help="keep decoded examples of files in memory")
    data.add_argument(
        "--stream", action="store_true",
        help="read each record of a TFRecord file on gs:// when it is needed, in place of downloading the file",
    )  # fmt: skip
    data.add_argument(
        "--augment", type=augmentation, metavar="KINDS", default=(),
        help="random changes of training images: crop, flip, or crop,flip (default: none)",
    )  # fmt: skip
    data.add_argument(
        "--input-shape", type=shape, metavar="H,W,C",
        help="of one example, unless the data is arrays; JPEG and PNG are resized to it; T for tokens (default: the "
        "model's)",
    )  # fmt: skip
    data.add_argument(
        "--classes", type=positive_int, metavar="K",
        help="number of labels, if the data does not define it (default: the model's)",
    )  # fmt: skip

    training = parser.add_argument_group("training")
    training.add_argument(
        "--epochs", type=positive_int, help="passes over the training examples (default: 5, or as --steps needs)"
    )
    training.add_argument("--steps", type=positive_int, metavar="N", help="end after so many steps")
    training.add_argument(
        "--batch-size", type=positive_int, default=16,
        help="examples per step and replica (device); with --accumulate, of one piece",
    )  # fmt: skip
    training.add_argument(
        "--accumulate", type=positive_int, default=1, metavar="N",
        help="each replica computes N pieces of a step one after the other, as N replicas would at once",
    )  # fmt: skip
    training.add_argument("--optimizer", choices=("adam", "momentum", "lamb"), help="(default: the model's)")
    training.add_argument(
        "--weight-decay", type=not_negative, default=0.0, metavar="RATE",
        help="decoupled for adam and lamb; not of biases and scales",
    )  # fmt: skip
    training.add_argument(
        "--learning-rate", type=positive_float, metavar="RATE",
        help="for the model's reference batch size (default: the model's)",
    )  # fmt: skip
    training.add_argument(
        "--learning-rate-scaling", choices=("linear", "sqrt", "none"), default="linear",
        help="how the rate grows with the global batch",
    )  # fmt: skip
    training.add_argument(
        "--warmup", type=fraction, default=0.2, help="fraction of the steps in which the rate rises to its peak"
    )
    training.add_argument("--seed", type=whole_number, default=0, help="of the initial parameters and of the shuffling")

    output = parser.add_argument_group("output")
    output.add_argument(
        "--job-dir",
        default=os.environ.get("TRAINYARD_JOB_DIR") or "./output",
        help="directory of checkpoints and the model: a path or gs://... (default: TRAINYARD_JOB_DIR, else ./output)",
    )
    output.add_argument("--keep", type=positive_int, default=3, help="number of checkpoints to keep")
    output.add_argument(
        "--checkpoint-every", type=whole_number, default=0, metavar="STEPS",
        help="steps between two checkpoints; 0: one at the end of each epoch",
    )  # fmt: skip
    output.add_argument(
        "--save-seconds", type=not_negative, default=0.0, metavar="SECONDS",
        help="seconds between two further checkpoints; 0: none",
    )  # fmt: skip
    output.add_argument(
        "--evaluate-every", type=whole_number, default=1, metavar="EPOCHS",
        help="epochs between two evaluations; 0: only at the end, e.g. with an evaluator",
    )  # fmt: skip
    output.add_argument(
        "--best", type=best_metric, metavar="METRIC:min|max",
        help="what makes an evaluation the best, whose checkpoint is kept (default: accuracy:max, or loss:min if the "
        "task has no accuracy)",
    )  # fmt: skip
    output.add_argument(
        "--early-stopping", type=whole_number, default=0, metavar="N",
        help="end when N evaluations in a row were no better than the best, and export the state of the best; 0: never",
    )  # fmt: skip
    output.add_argument(
        "--histograms", action="store_true",
        help="also write histograms of parameters and gradients for TensorBoard, at each evaluation",
    )  # fmt: skip
    output.add_argument(
        "--profile", type=step_range, metavar="FIRST-LAST",
        help="trace these steps of the chief by JAX's profiler; SIGUSR2 to it traces the next ones",
    )  # fmt: skip
    output.add_argument("--log-every", type=positive_int, default=10, help="steps between two metric lines")
    output.add_argument(
        "--heartbeat", type=not_negative, default=30.0,
        help="seconds without output after which a heartbeat line is written; 0: never",
    )  # fmt: skip
    return Arguments(**vars(parser.parse_args([_hyphens(word) for word in (sys.argv[1:] if argv is None else argv)])))


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


def best_metric(text: str) -> tuple[str, str]:
    """accuracy:max or loss:min."""
    name, _, direction = text.partition(":")
    if not name or direction not in ("min", "max"):
        raise argparse.ArgumentTypeError(f"{text} is not METRIC:min or METRIC:max, such as loss:min")
    return name, direction


def step_range(text: str) -> tuple[int, int]:
    """20-29."""
    first, _, last = text.partition("-")
    steps = positive_int(first), positive_int(last)
    if steps[0] > steps[1]:
        raise argparse.ArgumentTypeError(f"{text} is not FIRST-LAST, such as 20-29")
    return steps


def augmentation(text: str) -> tuple[str, ...]:
    kinds = tuple(filter(None, text.split(",")))
    if not set(kinds) <= {"crop", "flip"}:
        raise argparse.ArgumentTypeError(f"{text} is not crop, flip or crop,flip")
    return kinds


def _hyphens(word: str) -> str:
    """Accept --batch_size=32 for --batch-size=32, as hyperparameter tuning services pass it."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def _whole_number(text: str, minimum: int) -> int:
    if not text.lstrip("+-").isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {minimum}")
    return int(text)
