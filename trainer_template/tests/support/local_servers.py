"""Parameter servers and clients in the process of the test, on loopback, and the optimizers that they use."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from support.addresses import free_addresses
from support.lazy import client_module, jax, optax, server_module

if TYPE_CHECKING:
    from trainer.parameter_servers.variables import Leaves, Settings, Values

PATIENCE = 60.0  # timeout, in seconds
N = 11  # no multiple of 2 or 3
SGD: Settings = {"rate": 1.0}
MOMENTUM: Settings = {"rate": 0.1, "kind": "momentum"}
ADAM: Settings = {"rate": 0.1, "kind": "adam", "steps": 9}


def make(rate: float, kind: str = "sgd", steps: int = 1) -> optax.GradientTransformation:
    if kind == "adam":
        schedule = optax.warmup_cosine_decay_schedule(rate / 10, rate, 2, decay_steps=steps)
        return optax.flatten(optax.adam(schedule))
    return optax.sgd(rate, momentum={"sgd": None, "momentum": 0.9}[kind])


def vector(seed: int, size: int = N) -> Values:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def plain_optax(settings: Settings, values: Values, gradients: Sequence[Values]) -> Values:
    """The values after these updates by optax in one process."""
    optimizer = make(**settings)  # type: ignore[arg-type]

    @jax.jit
    def update(values: Any, state: Any, gradient: Values) -> Any:
        updates, state = optimizer.update(gradient, state, values)
        return optax.apply_updates(values, updates), state

    state = optimizer.init(values)
    for gradient in gradients:
        values, state = update(values, state, gradient)
    return np.asarray(values)


def recut(leaves: Sequence[Leaves], count: int) -> list[Leaves]:
    """The leaves of an optimizer for a vector, on another number of servers."""
    whole = [parts[0] if parts[0].ndim == 0 else np.concatenate(parts) for parts in zip(*leaves, strict=True)]
    bounds = [index * N // count for index in range(count + 1)]
    return [
        [leaf if leaf.ndim == 0 else leaf[start:end] for leaf in whole]
        for start, end in itertools.pairwise(bounds)
    ]


class Servers:
    """Servers and clients of one test."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.running: list[server_module.ParameterServer] = []
        self.stopped: list[threading.Event] = []
        self._clients: list[client_module.ParameterServerClient] = []

    def start(self, count: int) -> None:
        self.addresses = free_addresses(count)
        self.stopped = [threading.Event() for _ in range(count)]
        self.running = [
            server_module.serve(address, make, stopped=stopped)
            for address, stopped in zip(self.addresses, self.stopped, strict=True)
        ]

    def restart(self, index: int) -> None:
        self.running[index].stop(0)
        self.running[index] = server_module.serve(self.addresses[index], make, stopped=self.stopped[index])

    def client(
        self, worker: str = "chief", retry_for: float = PATIENCE
    ) -> client_module.ParameterServerClient:
        client = client_module.ParameterServerClient(self.addresses, worker, retry_for=retry_for)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self.running:
            server.stop(0)
