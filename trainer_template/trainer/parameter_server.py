"""Parameter servers: how variables that live on them are asked for, and who asks.

The model's parameters are one vector, float32 [N]. Server i of P holds the elements from i*N//P to (i+1)*N//P and the
optimizer's state for them (variables.py). The chief brings them and the optimizer's settings. Workers pull the vector
and push gradients, each at its own pace. When training is over the chief says so, and each worker, once it has seen
it, says goodbye: until then the servers answer it.

A server sees its own slice only, so the optimizer must be elementwise: what it does to an element depends on nothing
in the others (sgd, adam, schedules: yes; clipping by the global norm: no).

A message is a dict with NumPy arrays as msgpack; nothing that is received is ever run.
"""

import itertools
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, NamedTuple

import flax.serialization
import grpc
import numpy as np
from numpy.typing import NDArray

from trainer.errors import TrainerError
from trainer.variables import (
    NOT_FINITE,
    Leaves,
    MakeOptimizer,
    NotInitialized,
    Settings,
    Snapshot,
    Values,
    Variables,
    other_shape,
)

log = logging.getLogger("trainer")

# Seconds.
CALL_TIMEOUT = 60.0  # for one request
RETRY_FOR = 120.0  # how long a server that does not answer is asked again
FINISH_FOR = 10.0  # the same for finish and leave: all is saved by then, and a lost server costs nothing
GRACE = 20.0  # how long a server goes on after SIGTERM, for the chief to save; and after finish, for the others' steps
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # between two attempts
POLL = 0.2  # between two looks whether there is something to report

THREADS = 32  # requests that a server works on at once; more wait
SERVICE = "trainer.ParameterServer"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
SERVER_OPTIONS = [*UNLIMITED, ("grpc.so_reuseport", 0)]  # else two servers could have one port
CLIENT_OPTIONS = [
    *UNLIMITED,
    ("grpc.enable_http_proxy", 0),  # the servers are next door
    # Of itself gRPC waits up to two minutes before it connects again, and half of one before it looks up a name again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
]
TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

Message = dict[str, Any]


class ParameterServerError(TrainerError):
    """A parameter server does not answer, or has lost its variables: this process cannot go on."""


class Server:
    """Variables that can be asked for over the network."""

    def __init__(self, variables: Variables, server: grpc.Server) -> None:
        self.variables = variables
        self._server = server

    def stop(self, grace: float = 1.0) -> None:
        """Take no more requests, and give those under way so many seconds to be answered."""
        self._server.stop(grace).wait()


def serve(address: str, make_optimizer: MakeOptimizer, *, stopped: threading.Event) -> Server:
    """Answer clients at host:port from now on; `stopped` is set when one says that training is over.

    A loopback address is listened on alone; for any other, all interfaces of the host are.

    Raises:
        ParameterServerError: the port is taken.
    """
    variables = Variables(make_optimizer)
    server = grpc.server(ThreadPoolExecutor(THREADS), options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers([_handlers(variables, stopped)])
    loopback = address.startswith(("127.", "localhost:", "[::1]:"))
    try:
        server.add_insecure_port(address if loopback else f"[::]:{address.rpartition(':')[2]}")
    except RuntimeError as error:
        raise ParameterServerError(f"The parameter server cannot listen at {address}: {error}") from error
    server.start()
    return Server(variables, server)


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
    """Be parameter server `index` of `count` until training is over. For the main thread, which gets the signals.

    That is when the chief has called finish and every worker that has pulled has left, but no more than `grace`
    seconds after finish: one that was killed says no goodbye. After SIGTERM it goes on until finish alone, and for no
    more than `grace` seconds.

    After so many updates, and at the end for what is left, it calls report(step=version, staleness_mean=...,
    staleness_max=...), all since the report before. Where updates come faster than it looks for them, there are more
    to a report.

    Raises:
        ParameterServerError: the port is taken.
    """
    terminated: float | None = None

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = terminated or time.monotonic()

    signal.signal(signal.SIGTERM, remember)
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
                log.warning("ps %d: workers gone without a goodbye: %d.", index, variables.active())
                break
            time.sleep(POLL)
    finally:
        server.stop()
    if variables.staleness().updates > reported:
        _report(variables, report)
    if not stopped.is_set():
        log.warning("ps %d was told to stop, and not that training is over.", index)
    updates, mean, most, _ = variables.staleness()
    log.info("ps %d applied %d updates; staleness %.2f in the mean, %d at most.", index, updates, mean, most)


class Pulled(NamedTuple):
    """The values [N] as one client got them, to compute a gradient of, and their version on each server."""

    values: Values
    versions: tuple[int, ...]

    @property
    def version(self) -> int:
        """That of ps 0."""
        return self.versions[0]


class Pushed(NamedTuple):
    version: int  # of ps 0, after this update
    staleness: int  # the greatest of all servers


class Client:
    """All parameter servers as one vector, for one process and one thread of it.

    A request is made to all servers at once. One that does not answer is asked again for `retry_for` seconds.

    Every method may raise:
        ParameterServerError: a server does not answer or, restarted, has lost variables that this client knows of.
            (Only a checkpoint still has them: the job has to be started again.)
    """

    def __init__(self, addresses: Sequence[str], worker: str, *, retry_for: float = RETRY_FOR) -> None:
        """Args:
        addresses: host:port of the servers in order.
        worker: TASK/START, a name that no other start of any process ever had.
        """
        self._names = [f"ps {index} at {address}" for index, address in enumerate(addresses)]
        self._channels = [grpc.insecure_channel(address, options=CLIENT_OPTIONS) for address in addresses]
        self._starts = [""] * len(addresses)  # the start of each server that has the variables known here
        self._worker = worker
        self._numbers = itertools.count()
        self._retry_for = retry_for

    def wait_until_ready(self, timeout: float) -> None:
        """Until all servers answer, which may not even have been started yet."""
        self._call("status", patience=timeout, wait_for_ready=True)

    def wait_until_initialized(self, timeout: float) -> Settings:
        """Until all servers answer and have variables; returns the optimizer's settings."""
        deadline = time.monotonic() + timeout
        for pause in _pauses():
            answers = self._call("status", patience=deadline - time.monotonic(), wait_for_ready=True)
            missing = [
                name for name, answer in zip(self._names, answers, strict=True) if answer["version"] < 0
            ]
            if not missing:
                break
            if time.monotonic() + pause > deadline:
                raise ParameterServerError(
                    f"{missing[0]} got no variables in {timeout:g} s. The chief brings them: see its log."
                )
            time.sleep(pause)
        settings: Settings = answers[0]["settings"]
        return settings

    def initialize(self, values: Values, leaves: Leaves | None, version: int, settings: Settings) -> bool:
        """Bring the variables [N], as Variables.initialize does; False if any server had some, which it keeps.

        Raises:
            ValueError: the state is of another optimizer or another number of elements, or the servers have no
                optimizer with such settings.
        """
        requests: list[Message] = []
        for part in self._slices(len(values)):
            parts = [leaf[part] if np.shape(leaf) == np.shape(values) else leaf for leaf in leaves or []]
            state = None if leaves is None else _numbered(parts)
            brought = {"values": values[part], "leaves": state, "version": version}
            requests.append({**brought, "settings": dict(settings)})
        return all(answer["taken"] for answer in self._call("initialize", requests))

    def pull(self) -> Pulled:
        """The newest values.

        Raises:
            NotInitialized: a server has none yet.
        """
        answers = self._call("pull", [{"worker": self._worker}] * len(self._names))
        values = np.concatenate([answer["values"] for answer in answers])
        return Pulled(values, tuple(answer["version"] for answer in answers))

    def push(self, gradient: Values, computed_on: Pulled) -> Pushed:
        """Have a gradient [N] of those values applied, once, on all servers.

        Raises:
            ValueError: the gradient has another length or is not finite. Nothing has been changed.
        """
        # Asked here, too: a server sees its own slice alone, and the others would apply theirs.
        if np.shape(gradient) != computed_on.values.shape:
            raise ValueError(other_shape(gradient, computed_on.values.shape))
        if not np.isfinite(gradient).all():
            raise ValueError(NOT_FINITE)
        once = {"worker": self._worker, "number": next(self._numbers)}
        parts = zip(self._slices(len(gradient)), computed_on.versions, strict=True)
        requests = [{"gradient": gradient[part], "computed_on": version, **once} for part, version in parts]
        staleness: list[int] = [answer["staleness"] for answer in self._call("push", requests)]
        return Pushed(computed_on.version + staleness[0] + 1, max(staleness))

    def snapshot(self) -> Snapshot:
        """Values, optimizer's state and version (that of ps 0), to be brought to any number of servers.

        What one server holds is of one moment; between two servers lie, at most, the updates that are on their way.

        Raises:
            NotInitialized: a server has no variables yet.
        """
        answers = self._call("snapshot")
        leaves = []
        for parts in zip(*[_listed(answer["leaves"]) for answer in answers], strict=True):
            by_element = np.shape(parts[0]) == np.shape(answers[0]["values"])
            leaves.append(np.concatenate(parts) if by_element else parts[0])
        values = np.concatenate([answer["values"] for answer in answers])
        return Snapshot(values, leaves, answers[0]["version"])

    def leave(self) -> None:
        """For every worker but the chief, once it has seen that training is over: it asks for nothing any more.

        Never raises: a server that cannot be told is only warned of.
        """
        self._say("leave", "A parameter server may wait in vain for this worker: %s")

    def finish(self) -> None:
        """For the chief: training is over and everything saved. The servers may go when the other workers have left.

        Never raises: a server that cannot be told is only warned of.
        """
        self._say("finish", "A parameter server may not know that training is over: %s")

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def _say(self, method: str, warning: str) -> None:
        requests = [{"worker": self._worker}] * len(self._names)
        try:
            self._call(method, requests, patience=min(FINISH_FOR, self._retry_for))
        except ParameterServerError as error:
            log.warning(warning, error)

    def _slices(self, size: int) -> list[slice]:
        count = len(self._names)
        return [slice(index * size // count, (index + 1) * size // count) for index in range(count)]

    def _call(
        self,
        method: str,
        requests: Sequence[Message] | None = None,
        *,
        patience: float | None = None,
        wait_for_ready: bool = False,
    ) -> list[Message]:
        """The answers of all servers, in order. One that is not there yet is asked again or, if so told, waited for."""
        deadline = time.monotonic() + (self._retry_for if patience is None else patience)
        requests = requests or [{}] * len(self._names)
        waiting = {
            index: _pack({**request, "start": start})
            for index, (request, start) in enumerate(zip(requests, self._starts, strict=True))
        }
        answers: dict[int, Message] = {}
        for pause in _pauses():
            timeout = CALL_TIMEOUT
            if wait_for_ready:
                timeout = min(timeout, max(deadline - time.monotonic(), FIRST_PAUSE))
            calls = {
                index: self._channels[index]
                .unary_unary(f"/{SERVICE}/{method}", None, None)
                .future(data, timeout=timeout, wait_for_ready=wait_for_ready)
                for index, data in waiting.items()
            }
            for index, call in calls.items():
                try:
                    answers[index] = _unpack(call.result())
                except grpc.RpcError as error:
                    if error.code() not in TRANSIENT or time.monotonic() + pause > deadline:
                        raise self._failure(index, method, error) from error
                else:
                    del waiting[index]
            if not waiting:
                break
            time.sleep(pause)
        self._starts = [answers[index]["start"] for index in range(len(answers))]
        return [answers[index] for index in range(len(answers))]

    def _failure(self, index: int, method: str, error: grpc.RpcError) -> Exception:
        name, details = self._names[index], error.details()
        if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
            return ValueError(f"{name}: {details}")
        if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
            return ParameterServerError(f"{name} did not answer ({method}): {error.code().name}: {details}")
        if not self._starts[index]:
            return NotInitialized(f"{name} is {details}.")
        return ParameterServerError(
            f"{name} lost its variables: it was restarted. Start the job again; it goes on from its checkpoint."
        )


def _handlers(variables: Variables, stopped: threading.Event) -> "grpc.GenericRpcHandler[bytes, bytes]":
    """What a server answers."""
    start = secrets.token_hex(8)  # tells the variables of before a restart from those of after it

    def initialize(
        values: Values, leaves: dict[str, NDArray[Any]] | None, version: int, settings: Settings
    ) -> Message:
        listed = None if leaves is None else _listed(leaves)
        return {"taken": variables.initialize(values, listed, version, settings)}

    def pull(worker: str) -> Message:
        values, version = variables.pull(worker)
        return {"values": values, "version": version}

    def push(gradient: Values, computed_on: int, worker: str, number: int) -> Message:
        return {"staleness": variables.push(gradient, computed_on, worker, number)}

    def snapshot() -> Message:
        values, leaves, version = variables.snapshot()
        return {"values": values, "leaves": _numbered(leaves), "version": version}

    def status() -> Message:
        return {"version": variables.version, "settings": variables.settings}

    def leave(worker: str) -> Message:
        variables.leave(worker)
        return {}

    def finish(worker: str) -> Message:
        variables.leave(worker)
        stopped.set()
        return {}

    def handler(answer: Callable[..., Message]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        def respond(data: bytes, context: grpc.ServicerContext) -> bytes:
            request = _unpack(data)
            if request.pop("start") not in ("", start) and answer not in (leave, finish):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "restarted")
            try:
                answered = answer(**request)
            except NotInitialized as error:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return _pack({**answered, "start": start if variables.version >= 0 else ""})

        return grpc.unary_unary_rpc_method_handler(respond)

    answers = (status, initialize, pull, push, snapshot, leave, finish)
    handlers = {answer.__name__: handler(answer) for answer in answers}
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _report(variables: Variables, report: Callable[..., None]) -> int:
    """How many updates this was about."""
    recent = variables.recent_staleness()
    report(step=variables.version, staleness_mean=round(recent.mean, 3), staleness_max=recent.max)
    return recent.updates


def _pauses() -> Iterator[float]:
    """Seconds to wait before each further attempt, without end."""
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


def _numbered(leaves: Leaves) -> dict[str, NDArray[Any]]:
    """As a dict: flax divides arrays that are too large for it in dicts, not in lists."""
    return {str(number): leaf for number, leaf in enumerate(leaves)}


def _listed(leaves: Mapping[str, NDArray[Any]]) -> Leaves:
    return [leaves[str(number)] for number in range(len(leaves))]


def _pack(message: Message) -> bytes:
    data: bytes = flax.serialization.msgpack_serialize(message)
    return data


def _unpack(data: bytes) -> Message:
    message: Message = flax.serialization.msgpack_restore(data)
    return message
