"""The program: `python -m trainer.task --epochs 5 --job-dir DIR`.

stdout carries one JSON object a line (see report.py), stderr everything meant for reading. Exit codes: 0 trained, or
stopped by SIGTERM with its work saved; 1 failed, with a traceback; 2 used wrongly; 130 interrupted.
"""

import argparse
import contextlib
import dataclasses
import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from trainer import distribute

log = logging.getLogger("trainer")


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What can be asked for on the command line; a field is a flag of the same name."""

    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    job_dir: str
    keep: int
    log_every: int


def main(argv: Sequence[str] | None = None) -> NoReturn:
    arguments = parse_arguments(argv)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    log.setLevel(logging.INFO)
    try:
        run(arguments)
    except distribute.ClusterError as error:
        log.error("%s", error)  # noqa: TRY400 - what the environment says is wrong; a traceback would hide it
        leave(2)
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
    """Join the other processes, train, and part from them in good order."""
    cluster = distribute.cluster_from_environment()
    distribute.share_cpus(cluster)
    # JAX starts its threads when it is first used, so it is imported only after the CPUs are settled (and after the
    # flags are known to be right, which spares a typo the seconds that the import takes).
    from trainer.train import train

    distribute.join(cluster)
    train(arguments, cluster)
    distribute.part(cluster)


def leave(code: int) -> NoReturn:
    """Flush and be gone, now.

    A plain `sys.exit` would first wait for the other processes (JAX's shutdown barrier: a minute and more), who in turn
    wait in a collective for this one. Going at once closes the connections, and the others fail within a second.
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
        description="Train the digits CNN on every device of every process, in step.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--epochs", type=positive_int, default=5, help="passes over the training set")
    parser.add_argument(
        "--batch-size", type=positive_int, default=16, help="examples a step and replica (device)"
    )
    parser.add_argument(
        "--learning-rate",
        type=positive_float,
        default=0.002,
        help="for one replica; multiplied by their number",
    )
    parser.add_argument(
        "--seed", type=seed_int, default=0, help="of the first parameters and of the shuffling"
    )
    parser.add_argument(
        "--job-dir", default="./output", help="where checkpoints and the model go: a path or gs://..."
    )
    parser.add_argument("--keep", type=positive_int, default=3, help="checkpoints kept")
    parser.add_argument("--log-every", type=positive_int, default=10, help="steps between two metric lines")
    return Arguments(**vars(parser.parse_args(argv)))


def positive_int(text: str) -> int:
    return _whole_number(text, minimum=1)


def positive_float(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def seed_int(text: str) -> int:
    return _whole_number(text, minimum=0)


def _whole_number(text: str, minimum: int) -> int:
    if not text.lstrip("+-").isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {minimum}")
    return int(text)


if __name__ == "__main__":
    main()
