"""The listening socket."""

import asyncio
import socket
from contextlib import ExitStack

from trainyard_protocol.net.loopback import IPV4, listen


async def test_answers_of_several_writes_do_not_wait_for_the_clients_acknowledgement() -> None:
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[int] = loop.create_future()

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted = transport.get_extra_info("socket")
            connected.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with ExitStack() as stack:
        listener, _ = (stack.enter_context(held) for held in listen(IPV4, 0, 1))
        server = await loop.create_server(Connection, sock=listener)
        async with server:
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await connected
            writer.close()
            await writer.wait_closed()
