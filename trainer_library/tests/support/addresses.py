"""Free ports on loopback, each for one process of the tests on this machine, and for no outgoing connection."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

# Below the ports that the kernel gives to outgoing connections and to servers that leave the choice to it: a trainer
# listens only after seconds of imports, and in that time one of those would take a port that is merely free now. Agents
# choose the ports of replicas from 20,000 on.
PORTS = range(10_000, 20_000)
_LOCKS = Path(tempfile.gettempdir(), f"trainer-test-ports-{os.getuid()}").open("ab")  # noqa: SIM115 - to the end
_given: set[int] = set()


def free_addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        if port not in _given and _lock(port) and _is_free(port):
            _given.add(port)
            found.append(port)
    assert len(found) == count, f"{len(_given)} ports are in use by this process, and no other one is free."
    return found


def _lock(port: int) -> bool:
    """Lock a byte of a file for a port, until this process ends."""
    try:
        fcntl.lockf(_LOCKS, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
