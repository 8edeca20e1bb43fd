"""Machines as network namespaces on one network."""

import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from beds.programs import Programs

_NETWORK = "198.18.77"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Machine:
    """A network namespace with an address, and what runs in it."""

    namespace: str
    address: str
    programs: Programs


@contextmanager
def machines(home: Path, names: Sequence[str]) -> Iterator[list[Machine]]:
    """Machines of these names, with directories of their own. The test is skipped for a user who cannot make them."""
    unique = f"{os.getpid()}-{next(_numbers)}"
    hub = f"ty-hub-{unique}"
    namespaces = [f"ty-{name}-{unique}" for name in names]
    made: list[str] = []
    try:
        for namespace in (hub, *namespaces):
            if subprocess.run(["ip", "netns", "add", namespace], capture_output=True, check=False).returncode:
                pytest.skip("takes a user who may make network namespaces")
            made.append(namespace)
        _ip("-n", hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", hub, "link", "set", "switch", "up")
        with ExitStack() as stack:
            yield [
                stack.enter_context(_machine(home / name, hub, namespace, number))
                for number, (name, namespace) in enumerate(zip(names, namespaces, strict=True), start=1)
            ]
    finally:
        for namespace in made:
            _ip("netns", "delete", namespace)


@contextmanager
def _machine(home: Path, hub: str, namespace: str, number: int) -> Iterator[Machine]:
    device, port, address = "eth0", f"port{number}", f"{_NETWORK}.{number}"
    _ip("link", "add", port, "netns", hub, "type", "veth", "peer", device, "netns", namespace)
    _ip("-n", hub, "link", "set", port, "master", "switch", "up")
    _ip("-n", namespace, "address", "add", f"{address}/24", "dev", device)
    for link in (device, "lo"):
        _ip("-n", namespace, "link", "set", link, "up")
    with Programs(home, inside=("ip", "netns", "exec", namespace)).ending() as programs:
        yield Machine(namespace, address, programs)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
