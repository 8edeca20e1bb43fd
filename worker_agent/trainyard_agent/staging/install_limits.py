"""Limits of the installation of a run's packages, which runs their setup.py."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

from trainyard_agent.runtimes.installing import InstallLimits, no_memory, too_large, too_slow
from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.states import Reason

_MEASURE_S = 5.0  # between two measurements of the disk

_T = TypeVar("_T")


async def within(
    limits: InstallLimits, work: Coroutine[None, None, _T], disk_usage: Callable[[], Coroutine[None, None, int]]
) -> _T:
    """The result of `work`, which is cancelled beyond the limits of time and disk. Raises StagingFailed."""
    task = asyncio.ensure_future(work)
    give_up_at = time.monotonic() + limits.seconds
    try:
        while True:
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                raise StagingFailed(Reason.PACKAGES_FAILED, too_slow(limits.seconds))
            done, _ = await asyncio.wait({task}, timeout=min(left_s, _MEASURE_S))
            if done:
                return task.result()
            if limits.disk_bytes and await disk_usage() > limits.disk_bytes:
                raise StagingFailed(Reason.PACKAGES_FAILED, too_large(limits.disk_bytes))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def out_of_memory(limits: InstallLimits) -> StagingFailed:
    return StagingFailed(Reason.PACKAGES_FAILED, no_memory(limits.memory_bytes))
