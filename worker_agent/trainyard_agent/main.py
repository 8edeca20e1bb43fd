"""The command line: `python -m trainyard_agent`. Everything is put together here."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainyard_agent import capacity
from trainyard_agent import runtime_selection as places
from trainyard_agent.agent import Agent
from trainyard_agent.doctor import examine
from trainyard_agent.host.clock import SystemClock
from trainyard_agent.host.files import read_json, try_lock, write_json
from trainyard_agent.host.process_tags import StillAlive
from trainyard_agent.lease import lease_file
from trainyard_agent.lease import watchdog_files as fencing
from trainyard_agent.lease.lease import Lease
from trainyard_agent.options import STOP_ALL_GRACE_S, parse
from trainyard_agent.runtime_selection import Refused
from trainyard_agent.runtimes.base import Handle
from trainyard_agent.runtimes.docker.engine import Engine, EngineError
from trainyard_agent.runtimes.docker.runtime import DockerRuntime
from trainyard_agent.runtimes.docker.spec import Owner
from trainyard_agent.runtimes.process.runtime import ProcessRuntime
from trainyard_agent.server_client import ControlPlane
from trainyard_agent.staging.python_environment import end_leftovers
from trainyard_protocol import __version__
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import AgentInfo

_LOCK_PATIENCE_S = 5.0  # an agent that was told to end may take a moment
_KILL_PATIENCE_S = 30.0  # for what SIGKILL ends, and a log that is still written
_PAUSE_S = 0.02


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    if options.doctor:
        findings = examine(options.state_dir, options.live_runs, options.fix)
        print(json.dumps([finding.model_dump() for finding in findings]))
        return 0
    try:
        options.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(options.state_dir):
            if options.stop_all:
                stop_all(options.state_dir, options.grace)
            else:
                asyncio.run(_serve(options))
    except (Refused, capacity.BadCapacity, EngineError, InvalidArgument, StillAlive, OSError) as error:
        print(f"trainyard_agent: {error}", file=sys.stderr)
        return 1
    return 0


def stop_all(state_dir: Path, grace_s: float = STOP_ALL_GRACE_S) -> None:
    """Stop every replica under this state directory and wait until all are gone; then there is no lease, and nobody
    who watches over it.

    Their exits are kept, with the reason HOST_SHUTDOWN, for the next agent to report. Nothing there, or
    twice: nothing happens. Raises StillAlive if something survives SIGKILL, EngineError if containers may run
    and the engine does not answer.
    """
    fencing.end(state_dir)
    _stop_everything(state_dir, lambda _: grace_s, Reason.HOST_SHUTDOWN)


def stop_lost(state_dir: Path) -> None:
    """As `stop_all`, for the fence: the lease is over. The reason is HOST_LOST, each grace what the lease leaves of it.

    Raises Refused if there is an agent.
    """
    with _alone(state_dir):
        lease = Lease(SystemClock(), state_dir / lease_file.NAME)
        _stop_everything(state_dir, lambda handle: lease.grace_left(handle.grace_s), Reason.HOST_LOST)


def _stop_everything(state_dir: Path, grace_of: Callable[[Handle], float], reason: Reason) -> None:
    end_leftovers(state_dir / places.ENVIRONMENTS)
    _stop_runs(ProcessRuntime(state_dir), grace_of, reason)
    if DockerRuntime.has_runs(state_dir):
        with contextlib.closing(Engine()) as engine:
            engine.about()
            docker = DockerRuntime(state_dir, engine, Owner(_agent_id(state_dir)))
            with contextlib.closing(docker):
                _stop_runs(docker, grace_of, reason)


def _stop_runs(
    runtime: ProcessRuntime | DockerRuntime, grace_of: Callable[[Handle], float], reason: Reason
) -> None:
    graces = {handle.run_id: grace_of(handle) for handle in runtime.recover()}
    for run_id, grace_s in graces.items():
        runtime.stop(run_id, grace_s, reason)
    give_up_at = time.monotonic() + max(graces.values(), default=0.0) + _KILL_PATIENCE_S
    while alive := [run_id for run_id in graces if not runtime.is_over(run_id)]:
        if time.monotonic() > give_up_at:
            raise StillAlive(f"replicas of the runs {', '.join(alive)} do not end")
        time.sleep(_PAUSE_S)


async def _serve(options: argparse.Namespace) -> None:
    """Run the agent until SIGTERM or SIGINT. Replicas live on."""
    state_dir: Path = options.state_dir
    clock = SystemClock()
    async with ControlPlane(options.server, _token(options.token_file)) as control_plane:
        agent_id = _agent_id(state_dir)
        with places.opened(options, agent_id, control_plane) as place:
            info = AgentInfo(
                agent_id=agent_id,
                name=options.name or socket.gethostname(),
                version=__version__,
                runtime=place.runtime.name,
                capacity_mode=options.capacity,
                runs_images=place.runtime.runs_images,
                capacity=place.capacity,
                replica_environment=place.replica_environment,
            )
            lease = Lease(clock, state_dir / lease_file.NAME, fencing.FenceKeeper(state_dir).keep)
            agent = Agent(place.runtime, control_plane, place.stager, clock, info, lease, options.usage_every)
            running = asyncio.create_task(agent.run())
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, running.cancel)
            log = logging.getLogger(__name__)
            log.info("agent %s (%s runtime) speaks to %s", agent_id, info.runtime, options.server)
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
        raise Refused(f"--token-file {path} cannot be read: {error.strerror}.") from error
    if not token:
        raise Refused(f"--token-file {path} is empty.")
    return token


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Two agents on one state directory would start the same replicas twice."""
    path = state_dir / fencing.AGENT_LOCK
    give_up_at = time.monotonic() + _LOCK_PATIENCE_S
    while (lock := try_lock(path)) is None:
        if time.monotonic() > give_up_at:
            owner = path.read_text(encoding="ascii").strip()
            raise Refused(
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
