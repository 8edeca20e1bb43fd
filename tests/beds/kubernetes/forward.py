"""A door between network namespaces: passes connections on from a socket in one to an address in another.

python forward.py LISTENING-FD NETWORK-NAMESPACE HOST PORT
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

_NETWORK = 0x40000000  # CLONE_NEWNET


def enter(network: str) -> None:
    """Sockets that this process opens from now on are in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(network, os.O_RDONLY)
    if libc.setns(fd, _NETWORK):
        raise OSError(ctypes.get_errno(), f"cannot enter {network}")
    os.close(fd)


def listen_in(network: str, host: str) -> socket.socket:
    """A socket at a free port there; the caller stays in its own namespace, and only a thread goes."""

    def listen() -> socket.socket:
        enter(network)
        return socket.create_server((host, 0))

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(listen).result()


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # either side hung up
        while data := await source.read(1 << 16):
            to.write(data)
            await to.drain()
    to.close()


async def _serve(listening: socket.socket, host: str, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(host, port)
        except OSError:  # nobody listens there now
            writer.close()
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    server = await asyncio.start_server(serve, sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    number, namespace, to_host, to_port = sys.argv[1:]
    door = socket.socket(fileno=int(number))
    enter(namespace)
    asyncio.run(_serve(door, to_host, int(to_port)))
