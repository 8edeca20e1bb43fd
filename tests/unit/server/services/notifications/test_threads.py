"""Threads that projects share: calls that never end keep their places, and no other project's."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from trainyard_server.capabilities.notifications.threads import FairThreads


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends the calls that wait for it, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


async def test_calls_of_other_projects_run_beside_those_that_never_end(release: threading.Event) -> None:
    threads = FairThreads("test", in_all=3, of_project=2)
    begun: list[int] = []

    def never(number: int) -> None:
        begun.append(number)
        release.wait()

    stuck = [asyncio.create_task(threads.run("p", partial(never, number))) for number in range(5)]
    assert await threads.run("q", lambda: "answer") == "answer"
    assert begun == [0, 1]
    for call in stuck:
        call.cancel()  # given up, and two of them still run
    await asyncio.wait(stuck)
    later = asyncio.create_task(threads.run("p", lambda: "answer"))
    assert await threads.run("q", lambda: "answer") == "answer"
    assert (begun, later.done()) == ([0, 1], False)
    release.set()
    assert await later == "answer"
