"""Check that the machines of a gang reach each other, before its replicas start.

Each agent listens at the addresses of its replicas, where these will listen, and says the id of the gang to whoever
connects. A connection to each address of the others is then made: a firewall, a wrong `--address` and a machine that
answers for another are found before a program hangs of them.
"""

import asyncio
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress

from trainyard_agent.runtimes.ports import host_and_port

_CONNECT_S = 10.0
_LONGEST_ID = 64
_AT_ONCE = 64
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: the port of the listener has no connection in TIME_WAIT, which would keep it from its program."""


class Unreached(Exception):
    """Address that does not answer for the gang. The message is a clause."""


class Meeting:
    """The listeners of one part of a gang."""

    def __init__(self, gang: str) -> None:
        self._gang = gang
        self._servers: list[asyncio.Server] = []

    async def open(self, addresses: Iterable[str]) -> None:
        """Listen at these addresses (`host:port`). Raises OSError, and listens nowhere then."""
        try:
            for address in addresses:
                host, port = host_and_port(address)
                self._servers.append(await asyncio.start_server(self._answer, host, port))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Free the ports."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    async def reach(self, peers: Mapping[str, str]) -> None:
        """Connect to the addresses of the other parts, by task. Raises Unreached for the first that does not answer."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def reach(task: str, address: str) -> str:
            async with slots:
                try:
                    await asyncio.wait_for(self._ask(address), _CONNECT_S)
                except TimeoutError:
                    return f"{task} at {address}: no answer within {_CONNECT_S:g} s"
                except (OSError, ValueError) as error:
                    return f"{task} at {address}: {getattr(error, 'strerror', None) or error}"
                return ""

        problems = await asyncio.gather(*(reach(task, address) for task, address in peers.items()))
        if problem := next(filter(None, problems), ""):
            raise Unreached(problem)

    async def _ask(self, address: str) -> None:
        """Raises OSError, and ValueError where something else than the gang answers."""
        reader, writer = await asyncio.open_connection(*host_and_port(address), limit=_LONGEST_ID)
        try:
            answer = await reader.readline()
        finally:
            _socket_of(writer).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.close()
        if answer.decode("ascii", "replace").strip() != self._gang:
            raise ValueError("something else answers there, not the agent of its part")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say the gang, and let the caller end the connection."""
        with suppress(OSError):
            writer.write(f"{self._gang}\n".encode())
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), _CONNECT_S)
            _socket_of(writer).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        writer.close()


def _socket_of(writer: asyncio.StreamWriter) -> socket.socket:
    sock: socket.socket = writer.get_extra_info("socket")
    return sock
