"""The program: `python -m trainer.task --epochs 5 --job-dir DIR`.

stdout carries one JSON object a line (see report.py), stderr everything meant for reading. Exit codes: 0 trained, or
stopped by SIGTERM with its work saved; 1 failed, with a traceback; 2 used wrongly; 130 interrupted. SIGUSR1 writes the
stack of every thread to stderr and changes nothing; the first line on stdout says so.
"""

import argparse
import contextlib
import dataclasses
import faulthandler
import json
import logging
import math
import os
import signal
import sys
from collections.abc import Sequence
from typing import Literal, NoReturn

from trainer import cluster as clusters
from trainer.errors import TrainerError

log = logging.getLogger("trainer")


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What can be asked for on the command line; a field is a flag of the same name."""

    model: Literal["cnn", "resnet50", "transformer"]
    strategy: Literal["auto", "one-device", "mirrored", "multi-worker-mirrored", "parameter-server"]
    precision: Literal["float32", "bfloat16"]
    data: str
    held_out_data: str | None
    sharding: Literal["auto", "file", "data", "off"]
    cache: bool
    input_shape: tuple[int, ...] | None
    classes: int | None
    epochs: int
    batch_size: int
    optimizer: Literal["adam", "momentum"] | None
    learning_rate: float | None
    learning_rate_scaling: Literal["linear", "sqrt", "none"]
    warmup: float
    seed: int
    job_dir: str
    keep: int
    checkpoint_every: int
    evaluate_every: int
    log_every: int
    heartbeat: float


def main(argv: Sequence[str] | None = None) -> NoReturn:
    arguments = parse_arguments(argv)
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        print(json.dumps({"event": "start", "stacks": signal.SIGUSR1.name}), flush=True)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    log.setLevel(logging.INFO)
    try:
        run(arguments)
    except TrainerError as error:
        log.error("%s", error)  # noqa: TRY400 - it says all; a traceback would hide it
        leave(error.exit_code)
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            log.error("%s", exit_.code)  # noqa: TRY400 - as Python itself prints a message given to sys.exit
        leave(exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None))
    except KeyboardInterrupt:
        log.info("Interrupted.")
        leave(130)
    except BaseException:
        log.exception("Training failed.")
        leave(1)
    leave(0)


def run(arguments: Arguments) -> None:
    """Do what this process is there for, with the other processes of its job."""
    cluster = clusters.cluster_from_environment()
    clusters.share_cpus(cluster)
    # JAX starts its threads when it is first used, so it is imported only after the CPUs are settled (and after the
    # flags are known to be right, which spares a typo the seconds that the import takes).
    from trainer import asynchronous, distribute
    from trainer.evaluator import evaluate_checkpoints
    from trainer.strategy import choose, make_strategy
    from trainer.train import train

    strategy = choose(arguments.strategy, cluster)
    if cluster.role == "evaluator":
        evaluate_checkpoints(arguments, make_strategy("auto"))
    elif cluster.role == "ps":
        asynchronous.serve(arguments, cluster, strategy)
    elif strategy == "parameter-server":
        asynchronous.train(arguments, cluster, make_strategy("auto"))
    else:
        distribute.join(cluster)
        train(arguments, cluster, make_strategy(strategy))
        distribute.part()


def leave(code: int) -> NoReturn:
    """Flush and be gone, now.

    A plain `sys.exit` would first wait for the other processes (JAX's shutdown barrier: a minute and more), who in
    turn wait in a collective for this one. Going at once closes the connections, and the others fail within a second.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read the other end of the pipe has gone
            stream.flush()
    os._exit(code)


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """The flags as typed values. An unknown flag or a bad value ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.task",
        description="Train a model on every device of every process that TF_CONFIG names.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what is trained, and where")
    what.add_argument(
        "--model", choices=("cnn", "resnet50", "transformer"), default="cnn", help="the network"
    )
    what.add_argument(
        "--strategy",
        choices=("auto", "one-device", "mirrored", "multi-worker-mirrored", "parameter-server"),
        default="auto",
        help="how devices work together; auto takes all there are: of this process, of all processes, or of workers "
        "with parameter servers",
    )  # fmt: skip
    what.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32",
        help="what the network computes in; parameters and their exchange are float32",
    )  # fmt: skip

    data = parser.add_argument_group("the data")
    data.add_argument(
        "--data", default="digits",
        help="digits, synthetic, or files: .npz, TFRecord, ArrayRecord or .txt, with wildcards, on paths or gs://...",
    )  # fmt: skip
    data.add_argument(
        "--held-out-data", metavar="FILES",
        help="files to evaluate on; without, one in ten of the examples in --data",
    )  # fmt: skip
    data.add_argument(
        "--sharding", choices=("auto", "file", "data", "off"), default="auto",
        help="how processes divide the examples: by files, by examples, not at all; auto: by files if there are enough",
    )  # fmt: skip
    data.add_argument("--cache", action="store_true", help="keep what was read from files in memory")
    data.add_argument(
        "--input-shape", type=shape, metavar="H,W,C",
        help="of one example, where the data does not say it; T for tokens (default: what suits the model)",
    )  # fmt: skip
    data.add_argument(
        "--classes", type=positive_int, metavar="K",
        help="number of labels, where the data does not say it (default: what suits the model)",
    )  # fmt: skip

    how = parser.add_argument_group("how it is trained")
    how.add_argument("--epochs", type=positive_int, default=5, help="passes over the training examples")
    how.add_argument(
        "--batch-size", type=positive_int, default=16, help="examples a step and replica (device)"
    )
    how.add_argument("--optimizer", choices=("adam", "momentum"), help="(default: what suits the model)")
    how.add_argument(
        "--learning-rate", type=positive_float, metavar="RATE",
        help="for a global batch of the size that suits the model (default: what suits the model)",
    )  # fmt: skip
    how.add_argument(
        "--learning-rate-scaling", choices=("linear", "sqrt", "none"), default="linear",
        help="how the rate grows with the global batch",
    )  # fmt: skip
    how.add_argument(
        "--warmup", type=fraction, default=0.2, help="part of the steps in which the rate rises to its peak"
    )
    how.add_argument("--seed", type=seed_int, default=0, help="of the first parameters and of the shuffling")

    kept = parser.add_argument_group("what is kept and told")
    kept.add_argument(
        "--job-dir", default="./output", help="where checkpoints and the model go: a path or gs://..."
    )
    kept.add_argument("--keep", type=positive_int, default=3, help="checkpoints kept")
    kept.add_argument(
        "--checkpoint-every", type=whole_number, default=0, metavar="STEPS",
        help="steps between two checkpoints; 0: one at the end of each epoch",
    )  # fmt: skip
    kept.add_argument(
        "--evaluate-every", type=whole_number, default=1, metavar="EPOCHS",
        help="epochs between two evaluations; 0: only at the end, as where there is an evaluator",
    )  # fmt: skip
    kept.add_argument("--log-every", type=positive_int, default=10, help="steps between two metric lines")
    kept.add_argument(
        "--heartbeat", type=seconds, default=30.0,
        help="seconds without a line after which one says where the process stands; 0: never",
    )  # fmt: skip
    return Arguments(
        **vars(parser.parse_args([_hyphens(word) for word in (sys.argv[1:] if argv is None else argv)]))
    )


def positive_int(text: str) -> int:
    return _whole_number(text, minimum=1)


def whole_number(text: str) -> int:
    return _whole_number(text, minimum=0)


def seed_int(text: str) -> int:
    return _whole_number(text, minimum=0)


def positive_float(text: str) -> float:
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def seconds(text: str) -> float:
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def fraction(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 0 and below 1")
    return value


def shape(text: str) -> tuple[int, ...]:
    """32,32,3 or 32x32x3."""
    return tuple(positive_int(part) for part in text.replace("x", ",").split(","))


def _hyphens(word: str) -> str:
    """--batch_size=32, as a tuning service passes a parameter of that name, is --batch-size=32."""
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


if __name__ == "__main__":
    main()
