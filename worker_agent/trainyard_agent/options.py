"""The agent's command line: what it takes, and what is wrong with it."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard_agent.monitoring.usage_reporter import USAGE_S
from trainyard_agent.runtimes.docker.runtime import PIDS_LIMIT

STOP_ALL_GRACE_S = 10.0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Exits with status 2, as argparse does, for what cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m trainyard_agent",
        description="Runs on this machine what a Trainyard server wants run here.",
    )
    parser.add_argument("--server", metavar="URL", help="where the server is, such as http://127.0.0.1:8470")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="holds the agent's token")
    parser.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--runtime",
        choices=["auto", "process", "docker"],
        default="auto",
        help="what replicas are; auto (the default): containers where an engine answers and the image of the "
        "default runtime version is there, else processes",
    )
    _add_container_options(parser)
    parser.add_argument(
        "--capacity",
        choices=["fit", "strict"],
        default="fit",
        help="fit (the default): scale a gang that is larger than the machine down to it; strict: let it wait",
    )
    parser.add_argument("--cpus", default="", metavar="LIST", help="CPUs for replicas, such as 0,2-5")
    parser.add_argument("--memory-gb", type=_positive, metavar="N", help="memory for replicas, in 10^9 bytes")
    parser.add_argument(
        "--replica-env",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set this in every replica's environment; may be repeated",
    )
    parser.add_argument("--name", default="", help="what people call this agent; default: the host's name")
    parser.add_argument(
        "--python",
        type=_program,
        default=sys.executable,
        metavar="PROGRAM",
        help="the interpreter whose packages every job sees; default: the one that runs the agent",
    )
    parser.add_argument(
        "--usage-every",
        type=_seconds,
        default=USAGE_S,
        metavar="SECONDS",
        help="how often what replicas use (CPU, memory, GPUs) is measured, 0 for never; default: %(default)g",
    )
    parser.add_argument(
        "--stop-all",
        action="store_true",
        help="stop every replica that is alive under the state directory, and exit",
    )
    parser.add_argument(
        "--doctor",
        action="store_true",
        help="print as JSON what is left here of runs that nobody knows any more, and exit",
    )
    parser.add_argument("--fix", action="store_true", help="--doctor: remove it")
    parser.add_argument(
        "--live-runs",
        type=_words,
        metavar="RUN,...",
        help="--doctor: the runs that are not over, as the server says; without it their environments are let be",
    )
    parser.add_argument(
        "--grace",
        type=_positive,
        default=STOP_ALL_GRACE_S,
        metavar="SECONDS",
        help="--stop-all: between SIGTERM and SIGKILL; default: %(default)s",
    )
    options = parser.parse_args(argv)
    if not (options.stop_all or options.doctor) and not (options.server and options.token_file):
        parser.error("--server and --token-file are required, except with --stop-all and --doctor")
    options.state_dir = options.state_dir.absolute()
    return options


def _add_container_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "containers", "The engine is the one that DOCKER_HOST names, or this machine's."
    )
    group.add_argument(
        "--pull",
        choices=["missing", "always", "never"],
        default="missing",
        help="when to pull a job's image; default: where it is missing",
    )
    group.add_argument(
        "--runtimes",
        type=Path,
        metavar="FILE",
        help="images for runtime versions, laid over the shipped table",
    )
    group.add_argument(
        "--job-dir-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="job-dirs below it, which are paths, may be mounted into containers; may be repeated",
    )
    group.add_argument(
        "--pids-limit",
        type=_count,
        default=PIDS_LIMIT,
        metavar="N",
        help="processes and threads that a replica may have; default: %(default)s",
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in text.split(",") if word)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0; this is {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; this is {text!r}")
    return number


def _seconds(text: str) -> float:
    return 0.0 if text == "0" else _positive(text)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"must look like NAME=VALUE; this is {text!r}")
    if name.startswith("TRAINYARD_"):
        raise argparse.ArgumentTypeError(f"{name}: names that start with TRAINYARD_ are not for replicas")
    return name, value


def _program(text: str) -> str:
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no program on this machine")
    return str(Path(found).absolute())
