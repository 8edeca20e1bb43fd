"""A parameter server: responds to the requests of the chief and the workers over gRPC."""

import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import grpc
from numpy.typing import NDArray

from trainyard_trainer.parameter_servers import messages
from trainyard_trainer.parameter_servers.messages import Message, ParameterServerError
from trainyard_trainer.parameter_servers.variables import MakeOptimizer, NotInitialized, Settings, Values, Variables

log = logging.getLogger("trainer")

GRACE = 20.0  # seconds after SIGTERM, for the chief to save, and after finish, for the workers to leave
POLL = 0.2  # seconds between two checks for something to report
THREADS = 32  # concurrent requests; more are queued
OPTIONS = [*messages.UNLIMITED, ("grpc.so_reuseport", 0)]  # else two servers could share one port


class ParameterServer:
    """Serves variables over gRPC."""

    def __init__(self, variables: Variables, server: grpc.Server) -> None:
        self.variables = variables
        self._server = server

    def stop(self, grace: float = 1.0) -> None:
        """Refuse new requests, and wait at most `grace` seconds for those in progress."""
        self._server.stop(grace).wait()


def serve(address: str, make_optimizer: MakeOptimizer, *, stopped: threading.Event) -> ParameterServer:
    """Start serving at host:port; `stopped` is set when the chief calls finish.

    A loopback address is bound to itself, any other to all interfaces of the host.

    Raises:
        ParameterServerError: the port is in use.
    """
    variables = Variables(make_optimizer)
    server = grpc.server(ThreadPoolExecutor(THREADS), options=OPTIONS)
    server.add_generic_rpc_handlers([_handlers(variables, stopped)])
    loopback = address.startswith(("127.", "localhost:", "[::1]:"))
    try:
        server.add_insecure_port(address if loopback else f"[::]:{address.rpartition(':')[2]}")
    except RuntimeError as error:
        raise ParameterServerError(f"The parameter server cannot listen at {address}: {error}") from error
    server.start()
    return ParameterServer(variables, server)


def run_server(
    address: str,
    make_optimizer: MakeOptimizer,
    index: int,
    count: int,
    grace: float = GRACE,
    *,
    report: Callable[..., None],
    every: int,
) -> None:
    """Run parameter server `index` of `count` until training ends; call it in the main thread, which gets signals.

    It ends when the chief has called finish and every worker that has pulled has left, at most `grace` seconds after
    finish, as a killed worker does not call leave. After SIGTERM it only waits for finish, at most `grace` seconds.

    Every `every` updates or more, and at the end, it calls report(step=version, staleness_mean=..., staleness_max=...)
    for the updates since the last report.

    Raises:
        ParameterServerError: the port is in use.
    """
    terminated: float | None = None

    def on_sigterm(_signal: int, _frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = terminated or time.monotonic()

    signal.signal(signal.SIGTERM, on_sigterm)
    stopped = threading.Event()
    server = serve(address, make_optimizer, stopped=stopped)
    log.info("ps %d of %d listens at %s.", index, count, address)
    variables, reported = server.variables, 0
    try:
        while not stopped.wait(POLL) and not (terminated and time.monotonic() >= terminated + grace):
            reported += _report(variables, report) if variables.staleness().updates >= reported + every else 0
        deadline = time.monotonic() + grace
        while stopped.is_set() and variables.active() and not terminated:
            if time.monotonic() >= deadline:
                log.warning("ps %d: workers that ended without leaving: %d.", index, variables.active())
                break
            time.sleep(POLL)
    finally:
        server.stop()
    if variables.staleness().updates > reported:
        _report(variables, report)
    if not stopped.is_set():
        log.warning("ps %d stopped by SIGTERM before the chief finished training.", index)
    updates, mean, maximum = variables.staleness()
    log.info("ps %d applied %d updates; staleness: mean %.2f, max %d.", index, updates, mean, maximum)


def _handlers(variables: Variables, stopped: threading.Event) -> "grpc.GenericRpcHandler[bytes, bytes]":
    """The gRPC methods of a server."""
    start = secrets.token_hex(8)  # distinguishes the variables from those before a restart

    def initialize(values: Values, leaves: dict[str, NDArray[Any]] | None, version: int, settings: Settings) -> Message:
        listed = None if leaves is None else messages.leaves_from_dict(leaves)
        return {"taken": variables.initialize(values, listed, version, settings)}

    def pull(worker: str) -> Message:
        values, version = variables.pull(worker)
        return {"values": values, "version": version}

    def push(gradient: Values, computed_on: int, worker: str, number: int) -> Message:
        return {"staleness": variables.push(gradient, computed_on, worker, number)}

    def snapshot() -> Message:
        values, leaves, version = variables.snapshot()
        return {"values": values, "leaves": messages.leaves_to_dict(leaves), "version": version}

    def status() -> Message:
        return {"version": variables.version, "settings": variables.settings}

    def leave(worker: str) -> Message:
        variables.leave(worker)
        return {}

    def finish(worker: str) -> Message:
        variables.leave(worker)
        stopped.set()
        return {}

    def handler(method: Callable[..., Message]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        def respond(data: bytes, context: grpc.ServicerContext) -> bytes:
            request = messages.unpack(data)
            if request.pop("start") not in ("", start) and method not in (leave, finish):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "restarted")
            try:
                response = method(**request)
            except NotInitialized as error:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return messages.pack({**response, "start": start if variables.version >= 0 else ""})

        return grpc.unary_unary_rpc_method_handler(respond)

    methods = (status, initialize, pull, push, snapshot, leave, finish)
    handlers = {method.__name__: handler(method) for method in methods}
    return grpc.method_handlers_generic_handler(messages.SERVICE, handlers)


def _report(variables: Variables, report: Callable[..., None]) -> int:
    """Report recent staleness; returns the number of updates that it covers."""
    recent = variables.recent_staleness()
    report(step=variables.version, staleness_mean=round(recent.mean, 3), staleness_max=recent.max)
    return recent.updates
