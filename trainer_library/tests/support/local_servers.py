"""Parameter servers and clients in the process of the test, on loopback, and the optimizers that they use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from support.addresses import free_addresses
from support.lazy import client_module, optax, server_module

if TYPE_CHECKING:
    from trainyard_trainer.parameter_servers.variables import Settings, Values

PATIENCE = 60.0  # timeout, in seconds
N = 11  # no multiple of 2 or 3
SGD: Settings = {"rate": 1.0}
MOMENTUM: Settings = {"rate": 0.1, "kind": "momentum"}


def make(rate: float, kind: str = "sgd") -> optax.GradientTransformation:
    return optax.sgd(rate, momentum={"sgd": None, "momentum": 0.9}[kind])


def vector(seed: int, size: int = N) -> Values:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


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

    def client(self, worker: str = "chief", retry_for: float = PATIENCE) -> client_module.ParameterServerClient:
        client = client_module.ParameterServerClient(self.addresses, worker, retry_for=retry_for)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self.running:
            server.stop(0)
