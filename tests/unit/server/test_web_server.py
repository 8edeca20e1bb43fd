import asyncio
import errno
import socket
import struct
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from trainyard_protocol.net.loopback import IPV4, listen
from trainyard_server import web_server
from trainyard_server.config.network import BACKLOG, NetworkSettings
from trainyard_server.storage import descriptors
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.web_server import ACCEPTED_AT_ONCE, Connection, WebServer


@pytest.mark.parametrize(
    ("error", "exhausted"), [(OSError(errno.EMFILE, ""), True), (OSError(errno.ENOENT, ""), False), (None, False)]
)
def test_which_errors_say_that_no_descriptor_is_left(error: OSError | None, exhausted: bool) -> None:
    assert descriptors.is_exhausted(error) is exhausted


def test_many_connections_are_accepted_a_few_at_a_time_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = 5 * ACCEPTED_AT_ONCE
    turns = [0]  # the connections that each turn of the event loop accepts
    servers: list[WebServer] = []

    class CountedConnection(Connection):
        def __init__(self, *given: Any, **named: Any) -> None:
            turns[-1] += 1
            super().__init__(*given, **named)

    class ObservedServer(WebServer):
        async def startup(self, sockets: Any = None) -> None:
            servers.append(self)
            self._count_turns()
            await super().startup(sockets)

        def _count_turns(self) -> None:
            turns.append(0)
            asyncio.get_running_loop().call_soon(self._count_turns)

    monkeypatch.setattr(web_server, "Connection", CountedConnection)
    monkeypatch.setattr(web_server, "WebServer", ObservedServer)
    app = FastAPI()
    app.state.use_cases = SimpleNamespace(backend=SimpleNamespace(notifier=Notifier()))
    with ExitStack() as stack:
        listener, other = (stack.enter_context(held) for held in listen(IPV4, 0, BACKLOG))
        address = listener.getsockname()
        clients = [stack.enter_context(socket.create_connection(address, 10)) for _ in range(connections)]
        thread = threading.Thread(target=web_server.serve, args=(app, [listener, other], NetworkSettings()))
        thread.start()
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 404")
        information = listener.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 32)
        (longest_queue,) = struct.unpack_from("I", information, 28)  # tcpi_sacked: of a listener, its backlog
        servers[0].should_exit = True
        thread.join()
    assert sum(turns) == connections
    assert max(turns) <= ACCEPTED_AT_ONCE + 1  # some versions of Python accept one more
    assert longest_queue == min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))
