"""Threads and lookups that projects share: what never ends keeps its own place, and no other project's."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from beds.waiting import until
from trainyard_server.capabilities.notifications import resolver
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


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Ends the lookups that hang, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


async def test_hanging_lookup_is_not_begun_again_by_its_project_until_it_ends(
    end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        if not end.is_set():
            end.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(resolver, "_UNANSWERED_S", 0.0)
    found = resolver.Resolver()
    lookup = asyncio.create_task(found.addresses("p", "silent.example", 80))
    await asyncio.to_thread(until, lambda: asked)
    lookup.cancel()
    for _ in range(100):
        with pytest.raises(TimeoutError, match=r"an earlier lookup of silent\.example has not been answered yet"):
            await found.addresses("p", "silent.example", 80)
    assert await found.addresses("p", "192.0.2.7", 80) == ("192.0.2.7",)
    others = asyncio.create_task(found.addresses("q", "silent.example", 80))
    await asyncio.to_thread(until, lambda: len(asked) == 2)
    end.set()
    assert await others == ["192.0.2.1"]
    await asyncio.to_thread(until, lambda: not found._begun)
    assert await found.addresses("p", "silent.example", 80) == ["192.0.2.1"]
