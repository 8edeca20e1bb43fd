"""Broadcasts of values that many subscribers follow: one poll for all of them, rate-limited."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Iterable
from typing import Any, Generic, TypeVar

from trainyard_protocol.errors import NotFound
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.failures import FailureLog

_T = TypeVar("_T")

Poll = Callable[[_T | None, frozenset[str]], Awaitable[_T]]
"""Reads a value, which is never None. Gets the last value (None at first) and the topics published since."""

logger = logging.getLogger(__name__)

PAUSE_S = 0.25
"""From one poll to the next: what is published in between is read together."""

_GATHERED_S = 1.0
"""At least from one poll to the next for slow topics."""

_WOKEN_TOGETHER = 8  # subscribers: other work on the event loop has its turn before the next of them
_CLOSING = "closing"  # never published: closing the notifier wakes every subscription


class Broadcaster(Generic[_T]):
    """One channel for each key, from its first subscriber to its last. Event loops do not share channels."""

    def __init__(self, notifier: Notifier, ping_s: float, failure: str, *, pause_each_s: float = PAUSE_S) -> None:
        """`failure` begins the log message about a failed poll: "A page cannot be updated". `pause_each_s`: shorter
        than PAUSE_S, the pause of one subscriber; it grows with their number up to PAUSE_S."""
        self._notifier = notifier
        self._ping_s = ping_s
        self._failure = failure
        self._pause_each_s = pause_each_s
        self._failures = FailureLog(logger)
        self._channels: dict[Hashable, _Channel[_T]] = {}

    async def subscribe(
        self,
        key: Hashable,
        poll: Poll[_T],
        topics: tuple[str, ...],
        every_s: float = math.inf,
        slow_topics: tuple[str, ...] = (),
    ) -> AsyncGenerator[_T | None, None]:
        """Yield the value now, then the newest after each change; None after `ping_s` without one.

        The first subscriber's `poll` runs at once, after one of `topics` was published, and every `every_s`; at most
        once a second after one of `slow_topics`. The generator ends when the server shuts down, and after a failed
        poll, which is logged once: subscribe again.
        """
        where = (asyncio.get_running_loop(), key)
        channel = self._channels.get(where)
        if channel is None or channel.closed:
            channel = self._channels[where] = _Channel(self._pause_each_s)
            channel.start(self._poll(channel, poll, topics, slow_topics, every_s), self._close_with_server(channel))
        channel.subscribers += 1
        version = 0
        try:
            while await channel.wait(version, self._ping_s):
                if channel.version == version:
                    yield None
                else:
                    version = channel.version
                    yield channel.value
        finally:
            channel.subscribers -= 1
            if not channel.subscribers:
                channel.cancel()
                if self._channels.get(where) is channel:
                    del self._channels[where]

    async def _poll(
        self,
        channel: "_Channel[_T]",
        poll: Poll[_T],
        topics: tuple[str, ...],
        slow_topics: tuple[str, ...],
        every_s: float,
    ) -> None:
        published: frozenset[str] = frozenset()
        notifier = self._notifier
        try:
            with notifier.subscribe(*topics, *slow_topics) as changes, notifier.subscribe(*topics) as prompt:
                while not notifier.closed:
                    polled_at = time.monotonic()
                    await channel.publish(await poll(channel.value, published))
                    published = await changes.wait(every_s)
                    if published and not await prompt.wait(0):
                        await prompt.wait(max(0, polled_at + _GATHERED_S - time.monotonic()))
                        published |= await changes.wait(0)
        except NotFound:
            logger.info("%s: what it shows was deleted", self._failure)
        except Exception as error:  # noqa: BLE001 - logged; subscribers see that the channel is closed
            self._failures.record(self._failure, error)
        channel.close()

    async def _close_with_server(self, channel: "_Channel[_T]") -> None:
        """Also while a poll takes its time."""
        with self._notifier.subscribe(_CLOSING) as subscription:
            while not self._notifier.closed:
                await subscription.wait(math.inf)
        channel.close()


class _Channel(Generic[_T]):
    """One value. `version` counts its changes; 0 before the first poll."""

    def __init__(self, pause_each_s: float) -> None:
        self._pause_each_s = pause_each_s
        self.value: _T | None = None
        self.version = 0
        self.subscribers = 0
        self.closed = False
        self.tasks: tuple[asyncio.Task[None], ...] = ()
        self._waiting: dict[asyncio.Future[None], None] = {}  # a set in the order of arrival

    def start(self, *work: Coroutine[Any, Any, None]) -> None:
        self.tasks = tuple(asyncio.create_task(coroutine) for coroutine in work)

    async def wait(self, version: int, timeout_s: float) -> bool:
        """Wait for another version than `seen`. False: the channel is closed."""
        if self.version == version and not self.closed:
            woken = asyncio.get_running_loop().create_future()
            self._waiting[woken] = None
            try:
                await asyncio.wait((woken,), timeout=timeout_s)
            finally:
                del self._waiting[woken]
        return not self.closed

    async def publish(self, value: _T) -> None:
        """Wake the subscribers if the value is new, spread over the pause: a few at a time."""
        waiting: list[asyncio.Future[None]] = []
        if value != self.value:
            self.value, self.version = value, self.version + 1
            waiting = list(self._waiting)
        pause_s = min(PAUSE_S, self._pause_each_s * self.subscribers)
        parts = max(1, -(-len(waiting) // _WOKEN_TOGETHER))
        for part in range(parts):
            _wake(waiting[part::parts])
            await asyncio.sleep(pause_s / parts)

    def close(self) -> None:
        self.closed = True
        _wake(self._waiting)

    def cancel(self) -> None:
        self.closed = True
        for task in self.tasks:
            task.cancel()


def _wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    for woken in waiting:
        if not woken.done():
            woken.set_result(None)
