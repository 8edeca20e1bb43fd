"""Every line exactly once, whatever gets lost between agent and server."""

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

from trainyard_agent.control.log_shipper import MAX_CHUNKS, LogShipper
from trainyard_agent.engines.fake import Exit, FakeHost, FakeRuntime, Print, Script
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.errors import TrainyardError, Unavailable
from trainyard_protocol.wire.logs import LogChunk
from unit.agent.stub_server import StubServer, run_order

RUN, TASK = "1" * 32, "master-replica-0"
KEY = (RUN, TASK)


class Replica:
    """A replica that says `line 0` ... `line N-1`, one each second, and exits a second after the last."""

    def __init__(self, lines: int, log_quota: int = 0) -> None:
        self.expected = [f"line {n}" for n in range(lines)]
        steps: list[tuple[float, Print | Exit]] = [(float(n), Print(t)) for n, t in enumerate(self.expected)]
        steps.append((float(lines), Exit(0)))
        self.clock = ManualClock()
        self.runtime = FakeRuntime(FakeHost(self.clock, lambda launch: Script(tuple(steps))))
        self.runtime.place(run_order(RUN).model_copy(update={"log_quota_bytes": log_quota}))
        self.runtime.start(RUN, [Launch(TASK, ("x",), {}, (), 0)])


async def ship(server: StubServer, replica: Replica, **limits: Any) -> None:
    """All that there is, by a new agent."""
    async with server.client() as client:
        shipper = LogShipper(client, replica.runtime, **limits)
        while await shipper.ship([KEY]):
            pass


@pytest.mark.parametrize(("quota", "cut"), [(0, False), (500, True), (100_000, False)])
async def test_last_word_says_whether_a_quota_cut_the_log(quota: int, cut: bool) -> None:
    server, replica = StubServer(), Replica(20, quota)
    replica.clock.advance(100)

    await ship(server, replica)

    (end,) = [chunk.end for chunk in server.chunks if chunk.end]
    assert end.cut == cut
    assert server.texts(*KEY) == replica.expected[: end.count]
    assert (0 < end.count < 20) == cut
    assert server.complete == {KEY}


@pytest.mark.parametrize(("max_lines", "max_bytes", "chunks"), [(3, 1 << 20, 4), (100, 14, 5), (100, 1, 10)])
async def test_two_agents_in_turn_keep_chunks_within_their_limits_and_send_nothing_twice(
    max_lines: int, max_bytes: int, chunks: int
) -> None:
    server, replica = StubServer(), Replica(10)
    for seconds in (5, 100):
        replica.clock.advance(seconds)
        await ship(server, replica, max_lines=max_lines, max_bytes=max_bytes)
    assert server.texts(*KEY) == replica.expected
    sizes = [len(chunk.lines) for chunk in server.chunks if chunk.lines]
    assert (len(sizes), sum(sizes), max(sizes) <= max_lines) == (chunks, 10, True)


async def test_ship_of_a_loud_replica_takes_no_more_than_its_share_of_a_round() -> None:
    server, loud = StubServer(), Replica(3 * MAX_CHUNKS)
    loud.clock.advance(1000)
    async with server.client() as client:
        shipper = LogShipper(client, loud.runtime, max_lines=1)

        assert await shipper.ship([KEY])
        assert len(server.chunks) == MAX_CHUNKS

        assert await shipper.ship([KEY])
        assert len(server.chunks) == 2 * MAX_CHUNKS
        while await shipper.ship([KEY]):
            pass
        assert not await shipper.ship([KEY])

    assert server.texts(*KEY) == loud.expected
    assert server.complete == {KEY}


async def test_ship_drops_the_log_of_a_run_that_is_not_the_servers() -> None:
    server, replica = StubServer(), Replica(3)
    server.foreign.add(RUN)
    async with server.client() as client:
        shipper = LogShipper(client, replica.runtime)
        await shipper.ship([KEY])
        assert shipper.is_complete(KEY)
        await shipper.ship([])
        assert not shipper.is_complete(KEY)


async def test_ship_with_one_failing_log_still_sends_the_others() -> None:
    server, replica = StubServer(), Replica(3)
    replica.clock.advance(100)
    unknown = ("2" * 32, TASK)

    def refuse(chunk: LogChunk) -> None:
        if chunk.end is not None and chunk.end.count == 0:
            raise Unavailable("Not now.")

    server.before_chunk = refuse
    async with server.client() as client:
        with pytest.raises(Unavailable):
            await LogShipper(client, replica.runtime).ship([unknown, KEY])

    assert server.complete == {KEY}


@pytest.mark.parametrize("seed", range(5))
async def test_ship_through_random_faults_keeps_every_line_once(seed: int) -> None:
    chance = random.Random(seed)
    server, replica = StubServer(), Replica(40)

    def fault(_: LogChunk) -> None:
        match chance.randrange(6):
            case 0:
                raise Unavailable("before or after: who knows")
            case 1:
                lines = server.logs.get(KEY, [])
                if KEY not in server.complete:
                    del lines[chance.randrange(len(lines) + 1) :]

    server.before_chunk = server.after_chunk = fault
    async with server.client() as client:
        shipper = LogShipper(client, replica.runtime, max_lines=5)
        for _ in range(500):
            if chance.random() < 0.2:  # kill -9 of the agent
                shipper = LogShipper(client, replica.runtime, max_lines=5)
            with contextlib.suppress(TrainyardError):
                await shipper.ship([KEY])
            replica.clock.advance(chance.random() * 2)
            if server.complete:
                break

    assert server.complete == {KEY}
    assert server.texts(*KEY) == replica.expected
    assert_numbered_right(server.chunks, replica.expected)


def assert_numbered_right(chunks: Sequence[LogChunk], expected: Sequence[str]) -> None:
    for chunk in chunks:
        texts = [line.text for line in chunk.lines]
        assert texts == expected[chunk.start : chunk.start + len(texts)]
