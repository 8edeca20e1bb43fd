"""Pages that stay true while they are open: the parts of a page that changed, as server-sent events.

All who look at the same page as the same person share one look: a hundred open pages read the database once.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.failures import Troubles, reason

Parts = Mapping[str, str]
"""The HTML of each live part of a page, by its name."""

Key = tuple[str, ...]
"""Whoever has the same sees the same."""

logger = logging.getLogger(__name__)

_HOUR_S = 3600.0
_REST_S = 0.25  # between two looks at the same page: news that come in between are seen together


@dataclass(slots=True)
class _Shared:
    """One page, and everybody who has it open. `version` counts the looks that found something new."""

    parts: Parts = field(default_factory=dict)
    version: int = 0
    viewers: int = 0
    failed: Exception | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    tasks: "tuple[asyncio.Task[None], ...]" = ()


class Live:
    """Every page that is open somewhere. For one event loop."""

    def __init__(self, notifier: Notifier, ping_s: float) -> None:
        self._notifier = notifier
        self._ping_s = ping_s
        self._pages: dict[Key, _Shared] = {}
        self._troubles = Troubles(logger)

    async def stream(
        self, key: Key, look: Callable[[], Parts], topics: tuple[str, ...], every_s: float
    ) -> AsyncGenerator[Parts | None, None]:
        """All parts first, then those that changed; None whenever nothing has happened for a while.

        `look` is asked again after news of one of the topics, and at least every `every_s`. The stream ends when the
        server does, or where `look` cannot be asked: its reader comes back.
        """
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Shared()
            watching = self._watch(page, look, topics, every_s)
            page.tasks = (asyncio.create_task(watching), asyncio.create_task(self._end(page)))
        page.viewers += 1
        shown: Parts = {}
        seen = 0
        try:
            while not self._notifier.closed:
                await self._news(page, seen)
                if page.failed is not None or self._notifier.closed:
                    return
                if page.version == seen:
                    yield None
                    continue
                seen, parts = page.version, page.parts
                yield {name: html for name, html in parts.items() if shown.get(name) != html}
                shown = parts
        finally:
            page.viewers -= 1
            if page.viewers == 0:
                if self._pages.get(key) is page:
                    del self._pages[key]
                for task in page.tasks:
                    task.cancel()

    async def _news(self, page: _Shared, seen: int) -> None:
        """Waits until somebody has looked and found something new, for a while at most."""

        def is_news() -> bool:
            return page.version != seen or page.failed is not None or self._notifier.closed

        async with page.changed:  # a hundred others may stand before this one: asked again behind them
            with suppress(TimeoutError):
                async with asyncio.timeout(self._ping_s):
                    await page.changed.wait_for(is_news)

    async def _watch(
        self, page: _Shared, look: Callable[[], Parts], topics: tuple[str, ...], every_s: float
    ) -> None:
        """Looks for as long as anybody wants to know."""
        with self._notifier.subscribe(*topics) as news:
            while not self._notifier.closed:
                try:
                    parts = await run_in_threadpool(look)
                except Exception as error:  # noqa: BLE001 - told to everybody who waits, and logged below
                    await self._fail(page, error)
                    return
                if parts != page.parts:
                    async with page.changed:
                        page.parts = parts
                        page.version += 1
                        page.changed.notify_all()
                await asyncio.sleep(_REST_S)
                await news.wait(every_s)

    async def _end(self, page: _Shared) -> None:
        """Tells everybody when the server ends, also while a look takes its time."""
        with self._notifier.subscribe("the end") as end:
            while not self._notifier.closed:
                await end.wait(_HOUR_S)
        async with page.changed:
            page.changed.notify_all()

    async def _fail(self, page: _Shared, error: Exception) -> None:
        if reason(error) is None and not isinstance(error, OSError):
            logger.error("A page cannot be kept up to date", exc_info=error)
        else:
            self._troubles.note("A page cannot be kept up to date", error)
        for key, known in list(self._pages.items()):
            if known is page:
                del self._pages[key]  # whoever comes next tries anew
        async with page.changed:
            page.failed = error
            page.changed.notify_all()


def encode(parts: Parts) -> str:
    """The data of one event."""
    return json.dumps(parts, ensure_ascii=True)
