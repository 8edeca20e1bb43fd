"""Command line options of the agent, and their validation."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard_agent.monitoring.usage_reporter import USAGE_S
from trainyard_agent.runtimes.docker.runtime import PIDS_LIMIT

STOP_ALL_GRACE_S = 10.0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. Exits with status 2, as argparse does, for invalid ones."""
    parser = argparse.ArgumentParser(
        prog="python -m trainyard_agent",
        description="Runs the replicas that a Trainyard server assigns to this machine.",
    )
    parser.add_argument("--server", metavar="URL", help="the server's address, such as http://127.0.0.1:8470")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the agent's token")
    parser.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--runtime",
        choices=["auto", "process", "docker"],
        default="auto",
        help="how replicas of new runs may run; auto (the default): jobs with an image in containers, while an engine "
        "answers, and package jobs as processes (but see packageJobs and versions of --runtimes)",
    )
    _add_container_options(parser)
    parser.add_argument(
        "--capacity",
        choices=["fit", "strict"],
        default="fit",
        help="fit (the default): scale a gang that is larger than the machine down to it; strict: keep it queued",
    )
    parser.add_argument("--cpus", default="", metavar="LIST", help="CPUs for replicas, such as 0,2-5")
    parser.add_argument("--memory-gb", type=_positive, metavar="N", help="memory for replicas, in 10^9 bytes")
    parser.add_argument(
        "--replica-env",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set this in every replica's environment, without VALUE as in the agent's own; may be repeated",
    )
    parser.add_argument("--name", default="", help="the agent's display name; default: the host name")
    parser.add_argument(
        "--python",
        type=_program,
        default=sys.executable,
        metavar="PROGRAM",
        help="the interpreter whose packages every job can import; default: the one that runs the agent",
    )
    parser.add_argument(
        "--usage-every",
        type=_seconds,
        default=USAGE_S,
        metavar="SECONDS",
        help="interval between measurements of CPU, memory and GPU usage, 0 for none; default: %(default)g",
    )
    parser.add_argument(
        "--stop-all",
        action="store_true",
        help="stop every replica under the state directory, and exit",
    )
    parser.add_argument(
        "--doctor",
        action="store_true",
        help="print the orphaned processes, containers and directories on this machine as JSON, and exit",
    )
    parser.add_argument("--fix", action="store_true", help="--doctor: remove the orphans")
    parser.add_argument(
        "--live-runs",
        type=_words,
        metavar="RUN,...",
        help="--doctor: the runs that have not ended on the server; without it environments are not checked",
    )
    parser.add_argument(
        "--grace",
        type=_positive,
        default=STOP_ALL_GRACE_S,
        metavar="SECONDS",
        help="--stop-all: time between SIGTERM and SIGKILL; default: %(default)s",
    )
    options = parser.parse_args(argv)
    if not (options.stop_all or options.doctor) and not (options.server and options.token_file):
        parser.error("--server and --token-file are required, except with --stop-all and --doctor")
    options.state_dir = options.state_dir.absolute()
    return options


def _add_container_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "containers", "The engine is the one in DOCKER_HOST, or this machine's."
    )
    group.add_argument(
        "--pull",
        choices=["missing", "always", "never"],
        default="missing",
        help="when to pull a job's image; default: when it is missing",
    )
    group.add_argument(
        "--runtimes",
        type=Path,
        metavar="FILE",
        help="images for runtime versions, added to the shipped table",
    )
    group.add_argument(
        "--job-dir-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="job-dirs below this directory may be mounted into containers; may be repeated",
    )
    group.add_argument(
        "--pids-limit",
        type=_count,
        default=PIDS_LIMIT,
        metavar="N",
        help="limit of processes and threads for each replica; default: %(default)s",
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
    if not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must look like NAME=VALUE or NAME; this is {text!r}")
    if name.startswith("TRAINYARD_"):
        raise argparse.ArgumentTypeError(f"{name}: names that start with TRAINYARD_ are reserved")
    if not equals and name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name}: the agent's own environment has no such variable")
    return name, value if equals else os.environ[name]


def _program(text: str) -> str:
    program = shutil.which(text)
    if program is None:
        raise argparse.ArgumentTypeError(f"there is no program {text!r} on this machine")
    return str(Path(program).absolute())
