"""Check that the machines of a gang reach each other, before its replicas start.

Each agent listens at the addresses of its replicas, where these will listen, and says the id of the gang to whoever
connects. A connection to each address of the others is then made: a firewall, a wrong `--address` and a machine that
answers for another are found before a program hangs of them. An agent listens no longer than the others need: when
the first program starts, it finds programs or a closed port at the others' addresses, never an agent.
"""

import asyncio
import socket
import struct
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from trainyard_agent.runtimes.ports import host_and_port

_CONNECT_S = 10.0
_LONGEST_LINE = 256
_AT_ONCE = 64
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: the port of the listener has no connection in TIME_WAIT, which would keep it from its program."""


class Unreached(Exception):
    """Addresses that do not answer for the gang, those of the replicas `tasks`. The message is a clause about one."""

    def __init__(self, message: str, tasks: Collection[str]) -> None:
        super().__init__(message)
        self.tasks = tasks


class Meeting:
    """The listeners of one part of a gang."""

    def __init__(self, gang: str) -> None:
        self._gang = gang
        self._servers: list[asyncio.Server] = []
        self._callers: dict[str, dict[str, int]] = {}
        """The parts that have connected, by address: the number of their replicas by the name of the first."""
        self._called = asyncio.Event()

    async def open(self, addresses: Iterable[str]) -> None:
        """Listen at these addresses (`host:port`). Raises OSError, and listens nowhere then."""
        try:
            for address in addresses:
                host, port = host_and_port(address)
                answer = partial(self._answer, self._callers.setdefault(address, {}))
                self._servers.append(await asyncio.start_server(answer, host, port, limit=_LONGEST_LINE))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Free the ports."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    async def was_reached(self, others: int) -> None:
        """Wait until the other parts, which have this many replicas, have connected to each address. Close then."""
        while any(sum(callers.values()) < others for callers in self._callers.values()):
            self._called.clear()
            await self._called.wait()
        await self.close()

    async def reach(self, mine: Collection[str], peers: Mapping[str, str]) -> None:
        """Connect to the addresses of the other parts, by task, for the part with the replicas `mine`. Raises Unreached
        for those that do not answer."""
        slots = asyncio.Semaphore(_AT_ONCE)
        caller = f"{min(mine)} {len(mine)}"

        async def reach(task: str, address: str) -> str:
            async with slots:
                try:
                    await asyncio.wait_for(self._ask(address, caller), _CONNECT_S)
                except TimeoutError:
                    return f"{task} at {address}: no answer within {_CONNECT_S:g} s"
                except (OSError, ValueError) as error:
                    return f"{task} at {address}: {getattr(error, 'strerror', None) or error}"
                return ""

        problems = await asyncio.gather(*(reach(task, address) for task, address in peers.items()))
        if unreached := {task: problem for task, problem in zip(peers, problems, strict=True) if problem}:
            raise Unreached(next(iter(unreached.values())), unreached.keys())

    async def _ask(self, address: str, caller: str) -> None:
        """Raises OSError, and ValueError where something else than the gang answers."""
        reader, writer = await asyncio.open_connection(*host_and_port(address), limit=_LONGEST_LINE)
        try:
            writer.write(f"{self._gang} {caller}\n".encode())
            answer = await reader.readline()
        finally:
            _socket_of(writer).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.close()
        if answer.decode("ascii", "replace").strip() != self._gang:
            raise ValueError("something else answers there, not the agent of its part")

    async def _answer(
        self, callers: dict[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Say the gang, and let the caller end the connection. A part of the gang has connected then."""
        gang, name, size = "", "", ""
        with suppress(OSError, ValueError):  # a caller that is gone, and one that says something else
            writer.write(f"{self._gang}\n".encode())
            async with asyncio.timeout(_CONNECT_S):
                gang, name, size = (await reader.readline()).decode("ascii").split()
                await reader.read(1)
        with suppress(OSError):
            _socket_of(writer).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        writer.close()
        if gang == self._gang and size.isdecimal():
            callers[name] = int(size)
            self._called.set()


def _socket_of(writer: asyncio.StreamWriter) -> socket.socket:
    sock: socket.socket = writer.get_extra_info("socket")
    return sock
