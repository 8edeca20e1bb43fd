"""TCP proxy between a browser and the server, which a test can cut and restore."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlparse

_BLOCK = 1 << 16


class Link:
    """Forwards connections of a listening socket. While it is cut, connections are aborted."""

    def __init__(self, listening: socket.socket, target: str) -> None:
        self._listening = listening
        self._port = listening.getsockname()[1]
        self._target = urlparse(target)
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def cut(self) -> None:
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._close_all)

    def lead_to(self, target: str) -> None:
        """Forward new connections there."""
        self._target = urlparse(target)

    def restore(self) -> None:
        self._is_cut = False

    async def run(self, ready: threading.Event, end: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, sock=self._listening)
        ready.set()
        while not end.is_set():
            await asyncio.sleep(0.05)
        server.close()
        self._close_all()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _close_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        far_reader, far_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        both = {writer, far_writer}
        self._open |= both
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        self._open -= both
        self._serving.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while block := await reader.read(_BLOCK):
            writer.write(block)
            await writer.drain()
    writer.close()


@contextmanager
def linked(listening: socket.socket, target: str) -> Iterator[Link]:
    link, ready, end = Link(listening, target), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(link.run(ready, end)))
    thread.start()
    try:
        assert ready.wait(10)
        yield link
    finally:
        end.set()
        thread.join()
