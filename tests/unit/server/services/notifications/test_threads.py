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


async def test_waiting_calls_begin_with_the_project_that_has_fewest(release: threading.Event) -> None:
    threads = FairThreads("test", in_all=2, of_project=2)
    begun: list[str] = []

    def call(name: str) -> None:
        begun.append(name)
        release.wait()

    names = ("p1", "p2", "p3", "p4", "q1")
    calls = [asyncio.create_task(threads.run(name[0], partial(call, name))) for name in names]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*calls)
    assert begun.index("q1") < begun.index("p4")


async def test_error_of_a_call_is_raised_to_its_caller() -> None:
    threads = FairThreads("test", in_all=1, of_project=1)
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.run("p", lambda: int("x"))
    assert await threads.run("p", lambda: 1) == 1
