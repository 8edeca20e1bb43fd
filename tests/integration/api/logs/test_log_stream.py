"""Logs as server-sent events, and the answers that wait for news."""

import asyncio
import logging
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import ServerSentEvent, connect_sse

from beds.databases import on_every_database
from integration.api.api_support import (
    ADMIN,
    AGENT,
    KEY,
    Clock,
    ScriptedAgent,
    Server,
    eventually,
    line,
    parse_events,
    running_agent,
    server,
    serving,
)
from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.wire.logs import LogChunk, LogEnd, digest
from trainyard_protocol.wire.sync import SyncRequest
from trainyard_server.services.logs.formats import KEEPALIVE
from trainyard_server.storage.logs.records import DAMAGED

LOGS = "/trainyard/v1/projects/p/jobs/job/logs"


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent with a running job."""
    return running_agent(api)


@contextmanager
def started(data_dir: Path, clock: Clock, **changes: Any) -> Iterator[tuple[Server, ScriptedAgent]]:
    """A server of its own with an agent that has a running job."""
    with server(data_dir, clock, **changes) as api:
        agent = running_agent(api)
        yield api, agent


@contextmanager
def following(api: Server, **headers: str) -> Iterator[list[ServerSentEvent]]:
    """Events that a follower has received so far; the stream must end by itself."""
    received: list[ServerSentEvent] = []

    def read(address: str) -> None:
        with (
            httpx.Client(base_url=address, timeout=20) as client,
            connect_sse(client, "GET", LOGS, params={"follow": "true"}, headers=ADMIN | headers) as source,
        ):
            for event in source.iter_sse():
                received.append(event)  # noqa: PERF402 - callers read the list while it grows

    with serving(api.app) as address:
        reader = threading.Thread(target=read, args=(address,))
        reader.start()
        try:
            yield received
        finally:
            api.use_cases.backend.notifier.close()
            reader.join()


def entries_of(part: bytes) -> list[LogEntry]:
    """The lines in a part of a stream."""
    return [LogEntry.model_validate(data) for kind, data, _ in parse_events(part.decode()) if kind == "log"]


def texts(events: list[ServerSentEvent]) -> list[str]:
    return [event.json()["text"] for event in events if event.event == "log"]


def test_stream_without_follow_is_everything_there_is_after_the_last_line_that_was_read(
    api: Server, agent: ScriptedAgent
) -> None:
    agent.log("one", "two")
    events = api.stream()
    assert [kind for kind, *_ in events] == ["job"] + ["log"] * 8 + ["end"]
    assert events[0][1]["state"] == "RUNNING"
    assert events[0][1]["events"] == []
    assert [kind for kind, _, _ in api.stream(lines="false")] == ["job", "end"]
    logs = [data for kind, data, _ in events if kind == "log"]
    assert [data["cursor"] for data in logs] == list(range(1, 9))
    assert [ident for kind, _, ident in events if kind == "log"] == [str(n) for n in range(1, 9)]
    assert [logs[-1][name] for name in ("task", "run", "number", "text")] == ["master-replica-0", 1, 1, "two"]
    lines = {"0/service": 6, "1/master-replica-0": 2}
    assert events[-1][1] == {"state": "RUNNING", "lines": lines, "sha256": {}, "kept": {}}
    places: tuple[dict[str, Any], ...] = ({"last": "7"}, {"after": 7}, {"last": "7", "after": 1})
    for where in places:
        assert api.texts(**where) == ["two"], where


def test_bad_parameter_of_a_log_is_refused_at_its_name(api: Server, agent: ScriptedAgent) -> None:
    table: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("", {"task": "nonsense"}, "task"),
        ("", {"after": -1}, "after"),
        ("", {"after": "x"}, "after"),
        ("", {"follow": "perhaps"}, "follow"),
        ("", {"severity": "LOUD"}, "severity"),
        ("", {"since": "yesterday"}, "since"),
        ("", {"search": "x" * 1001}, "search"),
        ("/page", {"limit": 0}, "limit"),
        ("/page", {"limit": 1001}, "limit"),
        ("/page", {"before": 0}, "before"),
        ("/page", {"after": -1}, "after"),
        ("/page", {"before": 5, "after": 1}, "before"),
        ("/page", {"severity": "LOUD"}, "severity"),
        ("/page", {"task": ["service", "nobody"]}, "task"),
    )
    found = []
    for path, params, _ in table:
        error = api.refusal("GET", f"{LOGS}{path}", 400, params=params)
        found.append([one["field"] for one in error["details"][0]["fieldViolations"]])
    assert found == [[field] for *_, field in table]
    assert api.status("GET", LOGS, ADMIN | {"Last-Event-ID": "x"}) == 400
    # A line with half a surrogate pair: nothing of its chunk counts.
    body = '{"start": 0, "blocks": [{"time": "2026-11-20T12:00:00Z", "stream": "stdout", "texts": ["a", "\\ud800"]}]}'
    path = f"/agent/v1/runs/{agent.run.run_id}/replicas/master-replica-0/logs"
    assert api.status("POST", path, AGENT, content=body) == 400
    assert agent.log("one").next == 1


def test_burst_of_lines_reaches_readers_alike_and_costs_a_slow_one_nothing(tmp_path: Path, clock: Clock) -> None:
    count = 6000
    with started(tmp_path, clock) as (api, agent):
        cases, run_id = api.use_cases, agent.run.run_id
        key = cases.log_streaming.check("p", "job")

        def burst() -> int:
            """Send a burst; return the growth of memory in use."""
            before = 0
            for start in range(0, count, 2000):
                lines = tuple(line(f"line {n}") for n in range(start, start + 2000))
                cases.log_chunks.append(run_id, "master-replica-0", LogChunk.of(start, lines), KEY)
                if start == 2000:
                    tracemalloc.start()
                    before = tracemalloc.get_traced_memory()[0]
            return tracemalloc.get_traced_memory()[0] - before

        async def read(after: int = 0) -> list[LogEntry]:
            stream = cases.log_streaming.stream("p", "job", key=key, after=after, follow=False)
            return [entry async for part in stream for entry in entries_of(part)]

        async def all_of_them() -> None:
            slow = cases.log_streaming.stream("p", "job", key=key, after=5, follow=True)
            await anext(slow)  # the job
            got = entries_of(await anext(slow))
            try:
                assert await asyncio.to_thread(burst) < 2**21, "nothing is kept for one that does not read"
            finally:
                tracemalloc.stop()
            first, second = await asyncio.gather(read(), read())
            assert first == second
            assert [entry.text for entry in first[6:]] == [f"line {n}" for n in range(count)]
            assert [entry.cursor for entry in first] == list(range(1, count + 7))
            assert await read(after=count - 1000) == first[count - 1000 :], "one that comes back goes on exactly"
            while len(got) <= count:
                got += entries_of(await anext(slow))
            assert got == first[5:]
            await slow.aclose()

        asyncio.run(all_of_them())


@on_every_database
def test_log_over_its_quota_is_cut_with_a_notice(tmp_path: Path, clock: Clock) -> None:
    with started(tmp_path, clock, log_quota=3000) as (api, agent):
        receipt = agent.log(*["x" * 100] * 50)
        assert receipt.complete
        kept = receipt.next
        assert 0 < kept < 50
        assert agent.log("more") == receipt
        notice = (
            "The log of master-replica-0 continues, but the job's log quota of 3.0 kB is used up: "
            f"its lines from number {kept} on are not kept."
        )
        (event,) = [event for event in api.detail()["events"] if event["kind"] == "log-quota"]
        assert (event["message"], event["task"], event["run"]) == (notice, "master-replica-0", 1)
        agent.exit(logs=False)
        assert api.job()["state"] == "SUCCEEDED", "a job does not hang on a log that was cut"
        stream = api.stream()
        assert notice in [data["text"] for kind, data, _ in stream if kind == "log" and data["task"] == "service"]
        summary = stream[-1][1]
        assert (summary["kept"], summary["lines"]["1/master-replica-0"]) == ({"1/master-replica-0": kept}, kept)
        (replica,) = api.detail()["runs"][0]["replicas"]
        assert (replica["log_kept"], replica["log_lines"]) == (kept, kept)


def test_log_that_its_agent_cut_is_verified_and_noticed_the_same_way(api: Server, agent: ScriptedAgent) -> None:
    lines = (line("one"), line("two"))
    end = LogEnd(count=2, sha256=digest(lines), cut=True)
    assert agent.ship("master-replica-0", LogChunk.of(0, lines, end=end), agent.run).complete
    assert "its lines from number 2 on are not kept." in api.events()[-1]
    summary = api.stream()[-1][1]
    assert (summary["kept"], summary["sha256"]) == ({"1/master-replica-0": 2}, {"1/master-replica-0": end.sha256})
    assert agent.run.log_quota_bytes == 2**30


def test_line_that_the_disk_damaged_says_so_and_the_log_says_what_is_missing(tmp_path: Path, clock: Clock) -> None:
    with started(tmp_path, clock) as (api, agent):
        for text in ("one", "two", "three"):
            agent.log(text)
        whole = api.log()
    segment = tmp_path / "logs" / "p" / "job" / "segment"
    segment.write_bytes(segment.read_bytes().replace(b"two", b"\0\0\0"))
    with server(tmp_path, clock) as api:
        damaged = api.log()
        assert [data["text"] for data in damaged][-3:] == ["one", DAMAGED, "three"]
        assert [data["cursor"] for data in damaged] == [data["cursor"] for data in whole]
        lines = tuple(map(line, ("one", "two", "three")))
        end = LogChunk(start=3, end=LogEnd(count=3, sha256=digest(lines)))
        agent.server = api
        assert agent.ship("master-replica-0", end, agent.run).complete
        assert "1 of its 3 lines were damaged on the disk of the server" in api.events()[-1]


def test_follower_gets_lines_and_states_as_they_come_until_the_end(api: Server, agent: ScriptedAgent) -> None:
    with following(api) as received:
        eventually(lambda: len(texts(received)) == 6)
        agent.log("one")
        eventually(lambda: texts(received)[-1] == "one")
        agent.exit()
        eventually(lambda: received[-1].event == "end")
    states = [event.json()["state"] for event in received if event.event == "job"]
    assert (states[0], states[-1]) == ("RUNNING", "SUCCEEDED")
    assert texts(received)[-1] == "Job completed successfully."
    cursors = [int(event.id) for event in received if event.event == "log"]
    assert cursors == list(range(1, len(cursors) + 1))
    assert sum(received[-1].json()["lines"].values()) == len(cursors)


def test_quiet_stream_sends_a_comment_after_a_while(tmp_path: Path, clock: Clock) -> None:
    async def until_quiet(api: Server) -> list[bytes]:
        cases = api.use_cases
        key = cases.log_streaming.check("p", "job")
        stream = cases.log_streaming.stream("p", "job", key=key, after=6, follow=True)
        parts = [await anext(stream)]
        while len(parts) < 2 or parts[-1] != KEEPALIVE or set(parts) == {KEEPALIVE}:
            parts.append(await anext(stream))
        await stream.aclose()
        return parts

    with started(tmp_path, clock, ping_s=0.001) as (api, _agent):
        parts = asyncio.run(until_quiet(api))
    (job,) = (part for part in parts if part != KEEPALIVE)
    assert job.startswith(b"event: job\n")


def request(agent: ScriptedAgent, wait_s: float, seen: str = "") -> SyncRequest:
    return SyncRequest(agent=agent.info, runs=agent.reports(), wait_s=wait_s, seen=seen)


async def test_sync_that_is_newer_ends_the_older_and_two_agents_of_one_name_are_reported(
    api: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def listens() -> bool:
        return True

    agent, syncing = ScriptedAgent(api), api.use_cases.agent_sync
    async with asyncio.timeout(60):
        first = await syncing.sync(request(agent, wait_s=0), KEY)
        held = asyncio.create_task(syncing.sync(request(agent, wait_s=1000, seen=first.version), KEY, listens))
        await asyncio.sleep(0.05)
        with caplog.at_level(logging.WARNING):
            newer = await syncing.sync(request(agent, wait_s=0, seen=first.version), KEY)
            assert (await held).version == newer.version
    assert "Two agents use the id id-of-laptop" in caplog.text
