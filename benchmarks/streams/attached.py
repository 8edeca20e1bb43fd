"""Ports of a replica and keys typed into it, against a plain TCP proxy in Python in the same place."""

import os
import pty
import socket
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.rows import Row, Samples, interleaved
from benchmarks.service import TRAINYARD, Service, running
from trainyard_cli.capabilities.attachments.forwarding import Forward, Forwarder

_SIZE = 100_000_000
_KEYS = 50
_CHUNK = 1 << 16

_SENDER = """
import socket, sys
block = bytes(65536)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    with connection:
        left = int(connection.recv(100))
        while left > 0:
            left -= connection.send(block[:left])
"""
"""Sends as many bytes as it is asked for."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextmanager
def _proxied(port: int) -> Iterator[int]:
    """A proxy with two threads for a connection, as `port-forward` has. Gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, port: int) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # closed
            return
        other = socket.create_connection(("127.0.0.1", port))
        for source, target in ((client, other), (other, client)):
            threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(_CHUNK):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


def _rate(port: int) -> float:
    """Megabytes per second of a download from a port of this machine."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(str(_SIZE).encode())
        size = 0
        while data := connection.recv(_CHUNK):
            size += len(data)
    if size != _SIZE:
        raise RuntimeError(f"{size} of {_SIZE} bytes have come.")
    return size / 1e6 / (time.monotonic() - began)


def _throughput(quick: bool) -> Samples:
    with running() as service, ExitStack() as stack:
        port = _free_port()
        sender = subprocess.Popen([sys.executable, "-c", _SENDER, str(port)])
        stack.callback(sender.wait)
        stack.callback(sender.kill)
        service.run("ports", "import time; time.sleep(1e6)", 1)
        forwarder = Forwarder(service.client, "ports", "", [Forward(0, port)], "127.0.0.1")
        stack.callback(forwarder.close)
        threading.Thread(target=forwarder.serve, daemon=True).start()
        (local,) = (int(address.rpartition(":")[2]) for address in forwarder.addresses)
        proxied = stack.enter_context(_proxied(port))
        return interleaved(partial(_rate, local), partial(_rate, proxied), 3 if quick else 7, "MB/s")


class _Typed:
    """A command on a terminal, whose program shows again what is typed."""

    def __init__(self, command: list[str], service: Service) -> None:
        self._terminal, inner = pty.openpty()
        tty.setraw(inner)
        self._process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=service.environment, start_new_session=True
        )
        os.close(inner)
        seen = b""
        while not seen.endswith(b"ready\n"):
            seen += os.read(self._terminal, 1)

    def latency_ms(self) -> float:
        """The median time from a key to its echo."""
        times = []
        for _ in range(_KEYS):
            began = time.monotonic()
            os.write(self._terminal, b"x")
            os.read(self._terminal, 1)
            times.append(time.monotonic() - began)
            time.sleep(0.01)
        return sorted(times)[_KEYS // 2] * 1000

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


def _latency(quick: bool) -> Samples:
    """A key to its echo by `cat` on a raw terminal, here and in a replica."""
    echo = ["sh", "-c", "stty raw -echo; echo ready; exec cat"]
    with running() as service, ExitStack() as stack:
        service.run("keys", "import time; time.sleep(1e6)", 1)
        there = _Typed([TRAINYARD, "jobs", "exec", "keys", "--", *echo], service)
        stack.callback(there.close)
        here = _Typed(echo, service)
        stack.callback(here.close)
        return interleaved(there.latency_ms, here.latency_ms, 3 if quick else 7, "ms", is_difference=True)


ROWS = (
    Row(
        "port-forward",
        "100 MB through `jobs port-forward`",
        "a TCP proxy in Python, a thread for each direction",
        0.1,
        _throughput,
        bound="Python, which copies each chunk of 64 KiB in the agent, the server and the command, and masks it twice",
        is_rate=True,
    ),
    Row(
        "keystroke",
        "a key to its echo in `jobs exec` on a terminal",
        "the same command on a terminal of this machine",
        20.0,
        _latency,
        bound="six hops between processes, of which three are Python",
    ),
)
