"""Variables that live on parameter servers: what a server holds, how it is asked, and who asks.

The model's parameters are one vector, float32 [N]. Server i of P holds the elements from i*N//P to (i+1)*N//P and the
optimizer's state for them. Workers pull the vector and push gradients, each at its own pace; a server applies each as
it comes, to values that others may have changed since it was computed. By how many updates is its staleness.

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
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

log = logging.getLogger("trainer")

# Seconds.
CALL_TIMEOUT = 60.0  # for one request
RETRY_FOR = 120.0  # how long a server that does not answer is asked again
FINISH_FOR = 10.0  # the same for finish: all is saved by then, and a lost server costs nothing
GRACE = 20.0  # how long after SIGTERM a server goes on, so that the chief can save what it holds
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

Values = NDArray[np.float32]
Leaves = list[NDArray[Any]]  # of the optimizer's state, in the order of jax.tree.leaves
Message = dict[str, Any]


class ParameterServerError(RuntimeError):
    """A parameter server does not answer, or has lost its variables: this process cannot go on."""


class NotInitialized(RuntimeError):
    """There are no variables yet. The chief brings them: see Client.wait_until_initialized."""


class Snapshot(NamedTuple):
    """Variables at one moment: all that it takes to go on from there."""

    values: Values
    leaves: Leaves
    version: int


class Staleness(NamedTuple):
    """Of so many updates: by how many others the variables were ahead of those that the gradients were of."""

    updates: int
    mean: float
    max: int
    by_worker: dict[str, float]  # means


class Variables:
    """What one parameter server holds. Thread-safe; knows of no network."""

    def __init__(self, optimizer: optax.GradientTransformation) -> None:
        def update(values: jax.Array, state: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
            updates, state = optimizer.update(gradient, state, values)
            return optax.apply_updates(values, updates), state

        self._optimizer = optimizer
        # The state's memory is written over. Not that of the values: pull hands out views of them and copies nothing.
        self._update = jax.jit(update, donate_argnums=1)
        self._lock = threading.Lock()
        self._version = -1
        self._values: jax.Array = jnp.zeros(0, jnp.float32)
        self._state: Any = None
        self._last: dict[str, tuple[int, int]] = {}  # by worker: number and staleness of its last push
        self._all, self._recent = _Tally(), _Tally()

    @property
    def version(self) -> int:
        """Updates applied so far, those before a checkpoint included; -1 before there are variables."""
        return self._version

    def initialize(self, values: Values, leaves: Leaves | None, version: int) -> bool:
        """Bring the variables [N] and the optimizer's state for them; None is the state before any update.

        The first call wins; every later one is ignored and returns False, so that a chief that comes back after a
        crash does not undo what has been learned.

        Raises:
            ValueError: this is no vector, or the state is of another optimizer or another number of elements.
        """
        if np.ndim(values) != 1 or version < 0:
            raise ValueError(f"Variables of shape {np.shape(values)} and version {version}.")
        empty = self._optimizer.init(jnp.asarray(values, jnp.float32))
        expected = [np.asarray(leaf) for leaf in jax.tree.leaves(empty)]
        leaves = expected if leaves is None else leaves
        if [_kind(leaf) for leaf in leaves] != [_kind(leaf) for leaf in expected]:
            raise ValueError(
                "The optimizer's state is of another optimizer or another model: "
                f"{[_kind(leaf) for leaf in leaves]} instead of {[_kind(leaf) for leaf in expected]}."
            )
        with self._lock:
            if self._version >= 0:
                return False
            self._values = jnp.array(values, jnp.float32)
            # Copies, each with memory of its own to be written over.
            self._state = jax.tree.unflatten(jax.tree.structure(empty), [jnp.array(leaf) for leaf in leaves])
            self._version = version
        log.info("Initialized: %d elements, version %d.", len(values), version)
        return True

    def pull(self) -> tuple[Values, int]:
        """The values [N], not to be written to, and their version.

        Raises:
            NotInitialized: there are none.
        """
        with self._lock:
            self._check_initialized()
            return np.asarray(self._values), self._version

    def push(self, gradient: Values, computed_on: int, worker: str, number: int) -> int:
        """Apply a gradient [N] of the values that had the version `computed_on`; returns its staleness.

        `worker` is unique to one start of a worker's process, which numbers its gradients from 0. Each is applied
        once: the same number again (the answer had been lost) gets the same answer.

        Raises:
            NotInitialized: there are no variables.
            ValueError: the gradient has another length or is not finite, its version is still to come, or its number
                is less than the worker's last. Nothing has been changed.
        """
        finite = bool(np.isfinite(gradient).all())  # before the lock: it takes as long as the update
        with self._lock:
            self._check_initialized()
            last_number, last_staleness = self._last.get(worker, (-1, 0))
            if number == last_number:
                return last_staleness
            if np.shape(gradient) != self._values.shape:
                raise ValueError(_other_shape(gradient, self._values.shape))
            if not finite:
                raise ValueError(NOT_FINITE)
            staleness = self._version - computed_on
            if staleness < 0 or number < last_number:
                raise ValueError(
                    f"Gradient {number} of {worker}, computed on version {computed_on}, comes after its gradient "
                    f"{last_number} and at version {self._version}."
                )
            changed = self._update(self._values, self._state, jnp.asarray(gradient, jnp.float32))
            self._values, self._state = jax.block_until_ready(changed)
            self._version += 1
            self._last[worker] = (number, staleness)
            self._all.add(worker, staleness)
            self._recent.add(worker, staleness)
            return staleness

    def snapshot(self) -> Snapshot:
        """Values (not to be written to), optimizer's state and version of one moment.

        Raises:
            NotInitialized: there are none.
        """
        with self._lock:
            self._check_initialized()
            leaves = [np.array(leaf) for leaf in jax.tree.leaves(self._state)]
            return Snapshot(np.asarray(self._values), leaves, self._version)

    def staleness(self) -> Staleness:
        """Of all gradients since the start of this process."""
        with self._lock:
            return self._all.result()

    def recent_staleness(self) -> Staleness:
        """Of the gradients since this was last asked."""
        with self._lock:
            recent, self._recent = self._recent, _Tally()
            return recent.result()

    def _check_initialized(self) -> None:
        if self._version < 0:
            raise NotInitialized("not initialized")


class Server:
    """Variables that can be asked for over the network."""

    def __init__(self, variables: Variables, server: grpc.Server) -> None:
        self.variables = variables
        self._server = server

    def stop(self, grace: float = 1.0) -> None:
        """Take no more requests, and give those under way so many seconds to be answered."""
        self._server.stop(grace).wait()


def serve(address: str, optimizer: optax.GradientTransformation, *, stopped: threading.Event) -> Server:
    """Answer clients at host:port from now on; `stopped` is set when one says that training is over.

    A loopback address is listened on alone; for any other, all interfaces of the host are.

    Raises:
        RuntimeError: the port is taken.
    """
    variables = Variables(optimizer)
    server = grpc.server(ThreadPoolExecutor(THREADS), options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers([_handlers(variables, stopped)])
    loopback = address.startswith(("127.", "localhost:", "[::1]:"))
    try:
        server.add_insecure_port(address if loopback else f"[::]:{address.rpartition(':')[2]}")
    except RuntimeError as error:
        raise RuntimeError(f"The parameter server cannot listen at {address}: {error}") from error
    server.start()
    return Server(variables, server)


def run_server(
    address: str,
    optimizer: optax.GradientTransformation,
    index: int,
    count: int,
    grace: float = GRACE,
    *,
    report: Callable[..., None],
    every: int,
) -> None:
    """Be parameter server `index` of `count` until training is over. For the main thread, which gets the signals.

    After SIGTERM it goes on until a client has called finish, but for no more than `grace` seconds. After so many
    updates, and at the end for what is left, it calls report(step=version, staleness_mean=..., staleness_max=...), all
    since the report before. Where updates come faster than it looks for them, there are more to a report.

    Raises:
        RuntimeError: the port is taken.
    """
    terminated: float | None = None

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = terminated or time.monotonic()

    signal.signal(signal.SIGTERM, remember)
    stopped = threading.Event()
    server = serve(address, optimizer, stopped=stopped)
    log.info("ps %d of %d listens at %s.", index, count, address)
    variables, reported = server.variables, 0
    try:
        while not stopped.wait(POLL) and not (terminated and time.monotonic() >= terminated + grace):
            reported += _report(variables, report) if variables.staleness().updates >= reported + every else 0
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
        """`addresses` are host:port of the servers in order; `worker` is a name that no other process ever had."""
        self._names = [f"ps {index} at {address}" for index, address in enumerate(addresses)]
        self._channels = [grpc.insecure_channel(address, options=CLIENT_OPTIONS) for address in addresses]
        self._starts = [""] * len(addresses)  # the start of each server that has the variables known here
        self._worker = worker
        self._numbers = itertools.count()
        self._retry_for = retry_for

    def wait_until_ready(self, timeout: float) -> None:
        """Until all servers answer, which may not even have been started yet."""
        self._call("status", patience=timeout, wait_for_ready=True)

    def wait_until_initialized(self, timeout: float) -> None:
        """Until all servers answer and have variables."""
        deadline = time.monotonic() + timeout
        for pause in _pauses():
            answers = self._call("status", patience=deadline - time.monotonic(), wait_for_ready=True)
            missing = [
                name for name, answer in zip(self._names, answers, strict=True) if answer["version"] < 0
            ]
            if not missing:
                return
            if time.monotonic() + pause > deadline:
                raise ParameterServerError(
                    f"{missing[0]} got no variables in {timeout:g} s. The chief brings them: see its log."
                )
            time.sleep(pause)

    def initialize(self, values: Values, leaves: Leaves | None, version: int) -> bool:
        """Bring the variables [N], as Variables.initialize does; False if any server had some, which it keeps.

        Raises:
            ValueError: the state is of another optimizer or another number of elements.
        """
        requests: list[Message] = []
        for part in self._slices(len(values)):
            parts = [leaf[part] if np.shape(leaf) == np.shape(values) else leaf for leaf in leaves or []]
            state = None if leaves is None else _numbered(parts)
            requests.append({"values": values[part], "leaves": state, "version": version})
        return all(answer["taken"] for answer in self._call("initialize", requests))

    def pull(self) -> Pulled:
        """The newest values.

        Raises:
            NotInitialized: a server has none yet.
        """
        answers = self._call("pull")
        values = np.concatenate([answer["values"] for answer in answers])
        return Pulled(values, tuple(answer["version"] for answer in answers))

    def push(self, gradient: Values, computed_on: Pulled) -> Pushed:
        """Have a gradient [N] of those values applied, once, on all servers.

        Raises:
            ValueError: the gradient has another length or is not finite. Nothing has been changed.
        """
        # Asked here, too: a server sees its own slice alone, and the others would apply theirs.
        if np.shape(gradient) != computed_on.values.shape:
            raise ValueError(_other_shape(gradient, computed_on.values.shape))
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

    def finish(self) -> None:
        """Training is over and everything saved: the servers may go. One that cannot be told is only warned of."""
        try:
            self._call("finish", patience=min(FINISH_FOR, self._retry_for))
        except ParameterServerError as error:
            log.warning("A parameter server may not know that training is over: %s", error)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

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


NOT_FINITE = "The gradient is not finite: try a lower learning rate."


def _other_shape(gradient: Values, shape: tuple[int, ...]) -> str:
    return f"The gradient is of shape {np.shape(gradient)}, the variables are {shape}: another model?"


def _kind(leaf: NDArray[Any]) -> tuple[tuple[int, ...], str]:
    return np.shape(leaf), str(np.asarray(leaf).dtype)


class _Tally:
    """Stalenesses, added up."""

    def __init__(self) -> None:
        self._max = 0
        self._by_worker: dict[str, tuple[int, int]] = {}  # updates, and the sum of their stalenesses

    def add(self, worker: str, staleness: int) -> None:
        updates, total = self._by_worker.get(worker, (0, 0))
        self._by_worker[worker] = (updates + 1, total + staleness)
        self._max = max(self._max, staleness)

    def result(self) -> Staleness:
        updates = sum(updates for updates, _ in self._by_worker.values())
        total = sum(total for _, total in self._by_worker.values())
        means = {worker: total / updates for worker, (updates, total) in self._by_worker.items()}
        return Staleness(updates, total / max(updates, 1), self._max, means)


def _handlers(variables: Variables, stopped: threading.Event) -> "grpc.GenericRpcHandler[bytes, bytes]":
    """What a server answers."""
    start = secrets.token_hex(8)  # tells the variables of before a restart from those of after it

    def initialize(values: Values, leaves: dict[str, NDArray[Any]] | None, version: int) -> Message:
        listed = None if leaves is None else _listed(leaves)
        return {"taken": variables.initialize(values, listed, version)}

    def pull() -> Message:
        values, version = variables.pull()
        return {"values": values, "version": version}

    def push(gradient: Values, computed_on: int, worker: str, number: int) -> Message:
        return {"staleness": variables.push(gradient, computed_on, worker, number)}

    def snapshot() -> Message:
        values, leaves, version = variables.snapshot()
        return {"values": values, "leaves": _numbered(leaves), "version": version}

    def status() -> Message:
        return {"version": variables.version}

    def finish() -> Message:
        stopped.set()
        return {}

    def handler(answer: Callable[..., Message]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        def respond(data: bytes, context: grpc.ServicerContext) -> bytes:
            request = _unpack(data)
            if request.pop("start") not in ("", start) and answer is not finish:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "restarted")
            try:
                answered = answer(**request)
            except NotInitialized as error:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return _pack({**answered, "start": start if variables.version >= 0 else ""})

        return grpc.unary_unary_rpc_method_handler(respond)

    answers = (status, initialize, pull, push, snapshot, finish)
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
