"""The client of the parameter servers: pulls variables, pushes gradients.

The model's parameters are one vector, float32 [N], of which each server holds a part, by default an equal one, and the
optimizer's state for it (variables.py). The chief sends them and the optimizer's settings when training starts.
Workers pull the vector and push gradients, each at its own pace. At the end the chief calls `finish`, and each worker
calls `leave` once it has seen the last step; until then the servers keep responding.
"""

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import grpc
import numpy as np

from trainyard_trainer.parameter_servers import messages
from trainyard_trainer.parameter_servers.messages import Message, ParameterServerError
from trainyard_trainer.parameter_servers.variables import (
    NOT_FINITE,
    Leaves,
    NotInitialized,
    Settings,
    Values,
    shape_mismatch,
)

log = logging.getLogger("trainer")

# Seconds.
CALL_TIMEOUT = 60.0  # of one request
RETRY_FOR = 120.0  # how long a request is retried on a server that does not respond
FINISH_FOR = 10.0  # the same for finish and leave, when everything is saved
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # between two attempts

OPTIONS = [
    *messages.UNLIMITED,
    ("grpc.enable_http_proxy", 0),  # the servers are on the same network
    # By default gRPC waits up to two minutes before it reconnects, and 30 s before it resolves a name again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
]
TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class ServersSnapshot(NamedTuple):
    """Everything that is needed to resume: the values [N], the leaves of each server, and the version of ps 0."""

    values: Values
    leaves: list[Leaves]
    version: int


class Pulled(NamedTuple):
    """The values [N], to compute a gradient on, and their version on each server."""

    values: Values
    versions: tuple[int, ...]

    @property
    def version(self) -> int:
        """The version on ps 0."""
        return self.versions[0]


class Pushed(NamedTuple):
    version: int  # on ps 0, after this update
    staleness: int  # the maximum over all servers


class ParameterServerClient:
    """All parameter servers as one vector; not thread-safe.

    A request is sent to all servers concurrently, and retried for `retry_for` seconds on one that does not respond.

    Every method may raise:
        ParameterServerError: a server does not respond, or was restarted and lost its variables. (Only a checkpoint
            still has them: the job must be restarted.)
    """

    def __init__(
        self,
        addresses: Sequence[str],
        worker: str,
        parts: Sequence[slice] | None = None,
        *,
        retry_for: float = RETRY_FOR,
    ) -> None:
        """A client of the servers at these addresses (host:port, in order).

        Args:
            worker: TASK/START, unique to this start of the process.
            parts: the slice of the vector of each server.
        """
        self._parts = parts
        self._names = [f"ps {index} at {address}" for index, address in enumerate(addresses)]
        self._channels = [grpc.insecure_channel(address, options=OPTIONS) for address in addresses]
        self._starts = [""] * len(addresses)  # the id of the start in which each server got its variables
        self._worker = worker
        self._numbers = itertools.count()
        self._retry_for = retry_for

    def wait_until_ready(self, timeout: float) -> None:
        """Wait until all servers respond; they may start later than this process."""
        self._call("status", patience=timeout, wait_for_ready=True)

    def wait_until_initialized(self, timeout: float) -> Settings:
        """Wait until all servers have variables; returns the optimizer's settings."""
        deadline = time.monotonic() + timeout
        for pause in _pauses():
            responses = self._call("status", patience=deadline - time.monotonic(), wait_for_ready=True)
            missing = [name for name, response in zip(self._names, responses, strict=True) if response["version"] < 0]
            if not missing:
                break
            if time.monotonic() + pause > deadline:
                raise ParameterServerError(
                    f"{missing[0]} got no variables in {timeout:g} s. The chief sends them: see its log."
                )
            time.sleep(pause)
        settings: Settings = responses[0]["settings"]
        return settings

    def initialize(self, values: Values, leaves: Sequence[Leaves] | None, version: int, settings: Settings) -> bool:
        """Send the variables [N], see Variables.initialize; False if a server already had some, which it keeps.

        `leaves` are those of each server.

        Raises:
            ValueError: the state is of another optimizer or another number of elements, or the optimizer does not
                accept such settings.
        """
        requests: list[Message] = []
        for server, part in enumerate(self._slices(len(values))):
            state = None if leaves is None else messages.leaves_to_dict(leaves[server])
            variables = {"values": values[part], "leaves": state, "version": version}
            requests.append({**variables, "settings": dict(settings)})
        return all(response["taken"] for response in self._call("initialize", requests))

    def pull(self) -> Pulled:
        """The current values.

        Raises:
            NotInitialized: a server has no variables yet.
        """
        responses = self._call("pull", [{"worker": self._worker}] * len(self._names))
        values = np.concatenate([response["values"] for response in responses])
        return Pulled(values, tuple(response["version"] for response in responses))

    def push(self, gradient: Values, computed_on: Pulled) -> Pushed:
        """Apply a gradient [N] of these values exactly once on all servers.

        Raises:
            ValueError: the gradient has another length or is not finite. No server has changed its values.
        """
        # Checked before sending: a server sees only its slice, and the others would apply theirs.
        if np.shape(gradient) != computed_on.values.shape:
            raise ValueError(shape_mismatch(gradient, computed_on.values.shape))
        if not np.isfinite(gradient).all():
            raise ValueError(NOT_FINITE)
        identity = {"worker": self._worker, "number": next(self._numbers)}
        parts = zip(self._slices(len(gradient)), computed_on.versions, strict=True)
        requests = [{"gradient": gradient[part], "computed_on": version, **identity} for part, version in parts]
        staleness: list[int] = [response["staleness"] for response in self._call("push", requests)]
        return Pushed(computed_on.version + staleness[0] + 1, max(staleness))

    def snapshot(self) -> ServersSnapshot:
        """A copy of the values and the optimizer's state.

        It is consistent within a server; two servers may differ by the updates that are in flight.

        Raises:
            NotInitialized: a server has no variables yet.
        """
        responses = self._call("snapshot")
        leaves = [messages.leaves_from_dict(response["leaves"]) for response in responses]
        values = np.concatenate([response["values"] for response in responses])
        return ServersSnapshot(values, leaves, responses[0]["version"])

    def leave(self) -> None:
        """Announce that this worker sends no more requests. Errors are logged, not raised."""
        self._notify("leave", "A parameter server may wait for this worker although it has left: %s")

    def finish(self) -> None:
        """Announce, as the chief, that training has ended and is saved; servers exit when the workers have left.

        Errors are logged, not raised.
        """
        self._notify("finish", "A parameter server may not have been notified of the end of training: %s")

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def _notify(self, method: str, warning: str) -> None:
        requests = [{"worker": self._worker}] * len(self._names)
        try:
            self._call(method, requests, patience=min(FINISH_FOR, self._retry_for))
        except ParameterServerError as error:
            log.warning(warning, error)

    def _slices(self, size: int) -> list[slice]:
        if self._parts is not None:
            return list(self._parts)
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
        """The responses of all servers, in order. Transient errors are retried for `patience` seconds."""
        deadline = time.monotonic() + (self._retry_for if patience is None else patience)
        requests = requests or [{}] * len(self._names)
        pending = {
            index: messages.pack({**request, "start": start})
            for index, (request, start) in enumerate(zip(requests, self._starts, strict=True))
        }
        responses: dict[int, Message] = {}
        for pause in _pauses():
            timeout = CALL_TIMEOUT
            if wait_for_ready:
                timeout = min(timeout, max(deadline - time.monotonic(), FIRST_PAUSE))
            calls = {
                index: self._channels[index]
                .unary_unary(f"/{messages.SERVICE}/{method}", None, None)
                .future(data, timeout=timeout, wait_for_ready=wait_for_ready)
                for index, data in pending.items()
            }
            for index, call in calls.items():
                try:
                    responses[index] = messages.unpack(call.result())
                except grpc.RpcError as error:
                    if error.code() not in TRANSIENT or time.monotonic() + pause > deadline:
                        raise self._failure(index, method, error) from error
                else:
                    del pending[index]
            if not pending:
                break
            time.sleep(pause)
        self._starts = [responses[index]["start"] for index in range(len(responses))]
        return [responses[index] for index in range(len(responses))]

    def _failure(self, index: int, method: str, error: grpc.RpcError) -> Exception:
        name, details = self._names[index], error.details()
        if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
            return ValueError(f"{name}: {details}")
        if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
            return ParameterServerError(f"{name} did not respond ({method}): {error.code().name}: {details}")
        if not self._starts[index]:
            return NotInitialized(f"{name} is {details}.")
        return ParameterServerError(
            f"{name} lost its variables: it was restarted. Start the job again; it resumes from its checkpoint."
        )


def _pauses() -> Iterator[float]:
    """Endless backoff: seconds to wait before each further attempt."""
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)
