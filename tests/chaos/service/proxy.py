"""A network that misbehaves: HTTP on its way from somebody to one of the servers."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_LATE_S = 0.3
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Weather:
    """Faults of requests: shares between 0 and 1. `link`: up, or it refuses or drops everything."""

    link: str = "up"
    refused: float = 0.0
    """Closed before anything reaches the server."""
    answer_lost: float = 0.0
    """The server did what was asked, and the answer gets lost."""
    repeated: float = 0.0
    """The server is asked twice, and the second answer arrives."""
    cut_short: float = 0.0
    """The answer breaks off."""
    late: float = 0.0


CALM = Weather()


@dataclass(eq=False)
class Proxy:
    """Listens on `port` of the loopback. Each request is a connection of its own on the far side."""

    targets: Sequence[int]
    random_: random.Random
    weather: Weather = CALM
    port: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self._open, return_exceptions=True)

    def cut_all(self) -> None:
        for task in self._open:
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve it in a task that is known at once: what is cut before its first step is closed, too."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)

        def end(_: asyncio.Task[None]) -> None:
            self._open.discard(task)
            writer.close()

        task.add_done_callback(end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Without an exchange either side has gone, or the network: the connection closes.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._exchange(reader, writer)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.weather.link == "refuses":
            return
        request = await _request(reader)
        while self.weather.link == "swallows":
            await asyncio.sleep(0.05)
        weather = self.weather
        if self._happens("late", weather.late):
            await asyncio.sleep(_LATE_S * self.random_.random())
        if self._happens("refused", weather.refused):
            return
        if self._happens("repeated", weather.repeated):
            await self._forward(request, reader, None)
        if self._happens("answer_lost", weather.answer_lost):
            await self._forward(request, reader, None)
            return
        await self._forward(request, reader, writer, self._happens("cut_short", weather.cut_short))

    def _happens(self, what: str, share: float) -> bool:
        if self.random_.random() >= share:
            return False
        self.counts[what] = self.counts.get(what, 0) + 1
        return True

    async def _forward(
        self, request: bytes, near: asyncio.StreamReader, writer: asyncio.StreamWriter | None, cut_short: bool = False
    ) -> None:
        """Send it, and pass the answer on, if there is somebody to pass it to and the asker is still there."""
        reader, far = await asyncio.open_connection("127.0.0.1", self.random_.choice(self.targets))
        gone = asyncio.create_task(near.read(1))
        answer = asyncio.create_task(_pass_on(reader, writer, cut_short))
        try:
            far.write(request)
            await far.drain()
            await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
        finally:
            for task in (gone, answer):
                task.cancel()
            await asyncio.gather(gone, answer, return_exceptions=True)
            far.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """One whole request, which asks the server to close the connection after it."""
    head = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept, length = [head[0]], 0
    for field_line in head[1:]:
        name, _, value = field_line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        if name.lower() != b"connection":
            kept.append(field_line)
    body = await reader.readexactly(length)
    return b"\r\n".join([*kept, b"Connection: close", b"", body])


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, cut_short: bool) -> None:
    while block := await reader.read(_BLOCK):
        if writer is not None:
            writer.write(block[: len(block) // 2] if cut_short else block)
            await writer.drain()
        if cut_short:
            return


class Network:
    """The proxies of a history, on a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.proxies: dict[str, Proxy] = {}

    def add(self, side: str, targets: Sequence[int], seed: object) -> Proxy:
        proxy = Proxy(targets, random.Random(f"{side} {seed}"))
        asyncio.run_coroutine_threadsafe(proxy.listen(), self._loop).result(10)
        self.proxies[side] = proxy
        return proxy

    def change(self, side: str, weather: Weather) -> None:
        """From now on; a link that goes down takes with it what is under way."""
        proxy = self.proxies[side]

        def apply() -> None:
            proxy.weather = weather
            if weather.link == "refuses":
                proxy.cut_all()

        self._call(apply)

    def close(self) -> None:
        for proxy in self.proxies.values():
            asyncio.run_coroutine_threadsafe(proxy.close(), self._loop).result(10)
        self._call(self._loop.stop)
        self._thread.join(10)
        with contextlib.suppress(RuntimeError):
            self._loop.close()

    def _call(self, what: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(what)
