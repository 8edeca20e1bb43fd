"""The command line: `python -m trainyard_agent`. Everything is put together here."""

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainyard_agent import capacity
from trainyard_agent.agent import Agent
from trainyard_agent.clock import SystemClock
from trainyard_agent.control_plane import ControlPlane
from trainyard_agent.files import read_json, try_lock, write_json
from trainyard_agent.lease import Lease
from trainyard_agent.marks import StillAlive
from trainyard_agent.packages import PackageStager, end_leftovers
from trainyard_agent.runtimes.process import ProcessRuntime
from trainyard_protocol import __version__
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import AgentInfo

_LOCK_PATIENCE_S = 5.0  # an agent that was told to end may take a moment
_STOP_ALL_GRACE_S = 10.0
_KILL_PATIENCE_S = 30.0  # for what SIGKILL ends, and a log that is still written
_ENVIRONMENTS = "environments"
_PAUSE_S = 0.02


class _Refused(Exception):
    """Ends the program with this message and exit code 1."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    try:
        options.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(options.state_dir):
            if options.stop_all:
                stop_all(options.state_dir, options.grace)
            else:
                asyncio.run(_serve(options))
    except (_Refused, capacity.BadCapacity, StillAlive, OSError) as error:
        print(f"trainyard_agent: {error}", file=sys.stderr)
        return 1
    return 0


def stop_all(state_dir: Path, grace_s: float = _STOP_ALL_GRACE_S) -> None:
    """Stop every replica under this state directory and wait until all are gone.

    Their exits are kept, with the reason HOST_SHUTDOWN, for the next agent to report. Nothing there, or
    twice: nothing happens. Raises StillAlive if something survives SIGKILL.
    """
    end_leftovers(state_dir / _ENVIRONMENTS)
    runtime = ProcessRuntime(state_dir)
    run_ids = [handle.run_id for handle in runtime.recover()]
    for run_id in run_ids:
        runtime.stop(run_id, grace_s, Reason.HOST_SHUTDOWN)
    give_up_at = time.monotonic() + grace_s + _KILL_PATIENCE_S
    while alive := [run_id for run_id in run_ids if not runtime.is_over(run_id)]:
        if time.monotonic() > give_up_at:
            raise StillAlive(f"replicas of the runs {', '.join(alive)} do not end")
        time.sleep(_PAUSE_S)


async def _serve(options: argparse.Namespace) -> None:
    """Run the agent until SIGTERM or SIGINT. Replicas live on."""
    state_dir: Path = options.state_dir
    runtime = ProcessRuntime(state_dir)
    replica_environment = dict(options.replica_env)
    info = AgentInfo(
        agent_id=_agent_id(state_dir),
        name=options.name or socket.gethostname(),
        version=__version__,
        runtime=runtime.name,
        capacity_mode=options.capacity,
        runs_images=runtime.runs_images,
        capacity=capacity.detect(options.cpus, options.memory_gb),
        replica_environment=replica_environment,
    )
    clock = SystemClock()
    async with ControlPlane(options.server, _token(options.token_file)) as control_plane:
        stager = PackageStager(state_dir / _ENVIRONMENTS, control_plane, options.python, replica_environment)
        lease = Lease(clock, state_dir / "lease.json")
        agent = Agent(runtime, control_plane, stager, clock, info, lease)
        running = asyncio.create_task(agent.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        logging.getLogger(__name__).info("agent %s speaks to %s", info.agent_id, options.server)
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _agent_id(state_dir: Path) -> str:
    """Made once for each state directory."""
    path = state_dir / "agent.json"
    known = read_json(path)
    if known is None:
        known = {"agent_id": uuid.uuid4().hex}
        write_json(path, known)
    return str(known["agent_id"])


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _Refused(f"--token-file {path} cannot be read: {error.strerror}.") from error
    if not token:
        raise _Refused(f"--token-file {path} is empty.")
    return token


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Two agents on one state directory would start the same replicas twice."""
    path = state_dir / "agent.lock"
    give_up_at = time.monotonic() + _LOCK_PATIENCE_S
    while (lock := try_lock(path)) is None:
        if time.monotonic() > give_up_at:
            owner = path.read_text(encoding="ascii").strip()
            raise _Refused(
                f"another worker agent (process {owner or 'unknown'}) uses the state directory {state_dir}: "
                "end it first, or give this one a --state-dir of its own."
            )
        time.sleep(_PAUSE_S)
    try:
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainyard_agent",
        description="Runs on this machine what a Trainyard server wants run here.",
    )
    parser.add_argument("--server", metavar="URL", help="where the server is, such as http://127.0.0.1:8470")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="holds the agent's token")
    parser.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runtime", choices=["process"], default="process", help="default: process")
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
        "--stop-all",
        action="store_true",
        help="stop every replica that is alive under the state directory, and exit",
    )
    parser.add_argument(
        "--grace",
        type=_positive,
        default=_STOP_ALL_GRACE_S,
        metavar="SECONDS",
        help="--stop-all: between SIGTERM and SIGKILL; default: %(default)s",
    )
    options = parser.parse_args(argv)
    if not options.stop_all and not (options.server and options.token_file):
        parser.error("--server and --token-file are required, except with --stop-all")
    options.state_dir = options.state_dir.absolute()
    return options


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; this is {text!r}")
    return number


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
