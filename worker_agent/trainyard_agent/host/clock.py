"""Clocks: the system's, and a manual one for tests."""

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never decreases, and counts suspended time."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once `monotonic` has advanced by `seconds`, or a little later."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Return once the event is set, or after `seconds`."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)  # shared by all processes: see lease_file

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


class ManualClock:
    """Moves only by `advance`, which wakes sleepers in the order of their wakeup times."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        wakeup: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._elapsed + seconds, wakeup))
        await wakeup

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        tasks = [asyncio.ensure_future(self.sleep(seconds)), asyncio.ensure_future(event.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def advance(self, seconds: float) -> None:
        self._elapsed += seconds
        due = sorted((s for s in self._sleepers if s[0] <= self._elapsed), key=lambda sleeper: sleeper[0])
        self._sleepers = [s for s in self._sleepers if s[0] > self._elapsed]
        for _, wakeup in due:
            if not wakeup.done():
                wakeup.set_result(None)
