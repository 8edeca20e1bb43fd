"""Many lines in one event, pages in both directions, the first line that matters, and the log as a file."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.databases import on_every_database
from integration.api.api_support import (
    ADMIN,
    KEY,
    Clock,
    ScriptedAgent,
    Server,
    line,
    parse_events,
    running_agent,
    server,
)
from trainyard_protocol.wire.logs import LogChunk
from trainyard_server.services.logs import batches as log_batches
from trainyard_server.services.logs.formats import LogFormat
from trainyard_server.services.logs.job_status import JobStatusReader
from trainyard_server.storage.events.notifier import log_topic
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter

LOGS = "/trainyard/v1/projects/p/jobs/job/logs"

TEXTS = ("plain", "ERROR:root:bad", "<script>alert(1)</script>", "needle", "\u2028 \x85 \r", "W1120 12:00:00.1 a] b")


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent with a running job of two replicas."""
    return running_agent(api, workerType="local-1", workerCount=1, agent=ScriptedAgent(api, cpus=4))


@pytest.fixture
def chatty(agent: ScriptedAgent) -> ScriptedAgent:
    """An agent whose replicas have printed lines by turns."""
    dice = random.Random(7)
    for _ in range(12):
        task = dice.choice(["master-replica-0", "worker-replica-0"])
        agent.log(*dice.choices(TEXTS, k=dice.randint(1, 4)), task=task)
    return agent


def batches(api: Server, **params: Any) -> list[tuple[list[list[Any]], str]]:
    return [(data, ident) for kind, data, ident in api.stream(batch="true", **params) if kind == "lines"]  # type: ignore[misc]


def one_by_one(api: Server, **params: Any) -> list[list[Any]]:
    """Lines of a reader of single lines, in the form of batches."""
    names = ("cursor", "run", "task", "number", "time", "stream", "severity", "text")
    return [
        [data[name] for name in names] + [1] * data["partial"] + [3] * data["routine"]
        for kind, data, _ in api.stream(**params)
        if kind == "log"
    ]


FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"task": "worker-replica-0"},
    {"task": ["service", "worker-replica-0"]},
    {"severity": "WARNING"},
    {"search": "NEEDLE", "task": "master-replica-0"},
    {"run": 1, "severity": "ERROR"},
    {"run": 2, "task": "master-replica-0"},
)


def test_batches_pages_and_downloads_have_the_lines_of_the_stream(api: Server, chatty: ScriptedAgent) -> None:
    """From every cursor on, and in pages of any size in both directions."""
    total = len(one_by_one(api))
    for params in FILTERS:
        lines = one_by_one(api, **params)
        for cursor in range(total + 1):
            read = batches(api, last=str(cursor), **params)
            assert [one for data, _ in read for one in data] == [one for one in lines if one[0] > cursor]
            for data, ident in read:
                assert int(ident) >= (data[-1][0] if data else cursor), "the id goes with the batch"
        for limit in (1, 3, 1000):
            back = list(pages_back(api, limit, **params))
            assert [one for page in reversed(back) for one in page["lines"]] == lines
            assert all(len(page["lines"]) <= limit for page in back)
            assert [page["later"] for page in back] == [False] + [True] * (len(back) - 1)
            page, forth = {"last": 0, "later": True}, []
            while page["later"]:
                page = api.get(f"{LOGS}/page", after=page["last"], limit=limit, **params)
                forth += page["lines"]
            assert forth == lines
        expected = [f"{one[4]} {one[2] if one[2] == 'service' else f'{one[1]}/{one[2]}'} {one[7]}\n" for one in lines]
        answer = api.client.get(f"{LOGS}/download", params=params, headers=ADMIN)
        assert answer.content.decode() == "".join(expected)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="job.log"'
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_batch_may_be_empty_for_the_sake_of_its_id(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard_server.services.logs.streaming._CURSOR_EVERY_S", 0.0)
    with server(tmp_path, clock) as api:
        agent = running_agent(api)
        agent.log(*["nothing of interest"] * 6000)
        read = following(api, LogFilter(search="needle"), 6006)
    assert read[-1] == ([], "6006")
    assert all(data == [] for data, _ in read)
    assert [int(ident) for _, ident in read] == sorted({int(ident) for _, ident in read})


def following(api: Server, log_filter: LogFilter, until: int) -> list[tuple[Any, str]]:
    """Events of a follower of batches until its cursor is `until`."""

    async def follow() -> list[tuple[Any, str]]:
        streaming = api.use_cases.log_streaming
        key = streaming.check("p", "job")
        read: list[tuple[Any, str]] = []
        stream = streaming.stream(
            "p", "job", key=key, after=0, follow=True, log_filter=log_filter, form=LogFormat.BATCH
        )
        async with asyncio.timeout(60):
            async for part in stream:
                read += [(data, ident) for kind, data, ident in parse_events(part.decode()) if kind == "lines"]
                if read and int(read[-1][1]) >= until:
                    break
        await stream.aclose()
        return read

    return asyncio.run(follow())


def test_followers_at_all_places_get_what_each_would_get_alone_while_lines_come(tmp_path: Path, clock: Clock) -> None:
    """Late, slow, filtered and from anywhere: shared batches are the lines that the store has."""
    dice = random.Random(11)
    texts = [f"{n} {dice.choice(TEXTS)}" for n in range(3000)]
    with server(tmp_path, clock) as api:
        agent = running_agent(api)
        cases, run_id = api.use_cases, agent.run.run_id
        key = cases.log_streaming.check("p", "job")
        total = 6 + len(texts)

        def ship(start: int, end: int) -> None:
            chunk = LogChunk.of(start, tuple(map(line, texts[start:end])))
            cases.agent_sync.append_logs(run_id, "master-replica-0", chunk, KEY)

        async def reader(after: int, log_filter: LogFilter, slow: bool, late_s: float) -> list[list[Any]]:
            await asyncio.sleep(late_s)
            read: list[list[Any]] = []
            cursor = after
            stream = cases.log_streaming.stream(
                "p", "job", key=key, after=after, follow=True, log_filter=log_filter, form=LogFormat.BATCH
            )
            async for part in stream:
                for kind, data, ident in parse_events(part.decode()):
                    if kind == "lines":
                        assert int(ident) > cursor, "an event moves on"
                        read += data
                        cursor = int(ident)
                if cursor >= total:
                    break
                if slow:
                    await asyncio.sleep(0.05)
            await stream.aclose()
            return read

        async def all_of_them() -> None:
            filters = [EVERYTHING, LogFilter(search="9"), LogFilter(frozenset({"service", "master-replica-0"}))]
            asked = [
                (dice.randint(0, 700), dice.choice(filters), dice.random() < 0.3, dice.random()) for _ in range(25)
            ]
            async with asyncio.timeout(120), asyncio.TaskGroup() as group:
                readers = [group.create_task(reader(*one)) for one in asked]
                start = 0
                while start < len(texts):
                    end = min(start + dice.randint(1, 120), len(texts) - 1 if start < len(texts) - 1 else len(texts))
                    await asyncio.to_thread(ship, start, end)
                    start = end
                    await asyncio.sleep(dice.random() * 0.03)
                # What a filter finds last is the last line: so all of them end.
            for (after, given, *_), task in zip(asked, readers, strict=True):
                whole = cases.backend.logs.read("p", "job", after, given, max_lines=10**6)
                entries = list(whole.entries)
                while whole.more:
                    whole = cases.backend.logs.read("p", "job", whole.last, given, max_lines=10**6)
                    entries += whole.entries
                assert [(one[0], one[7]) for one in task.result()] == [(e.cursor, e.text) for e in entries]

        assert "9" in texts[-1]
        asyncio.run(all_of_them())


def test_lines_that_many_readers_request_are_read_once(
    api: Server, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.log(*map(str, range(700)))
    cases = api.use_cases
    reads: list[int] = []
    read, detail = cases.backend.logs.read, cases.job_details.detail
    details: list[str] = []

    def noted_read(*given: Any, **more: Any) -> Any:
        reads.append(given[2])
        return read(*given, **more)

    def noted_detail(*given: Any) -> Any:
        details.append(given[1])
        return detail(*given)

    monkeypatch.setattr(cases.backend.logs, "read", noted_read)
    monkeypatch.setattr(cases.job_details, "detail", noted_detail)

    async def follow() -> None:
        key = cases.log_streaming.check("p", "job")

        async def one() -> None:
            cursor = 0
            stream = cases.log_streaming.stream("p", "job", key=key, after=0, follow=True, form=LogFormat.BATCH)
            async for part in stream:
                cursor = max([cursor, *(int(i) for kind, _, i in parse_events(part.decode()) if kind == "lines")])
                if cursor == 706:
                    break
            await stream.aclose()

        async with asyncio.timeout(60):
            await asyncio.gather(*(one() for _ in range(50)))

    asyncio.run(follow())
    assert len(details) == 1
    assert sorted(set(reads)) == [0, 500]
    assert len(reads) <= 4


def test_cache_is_bounded_and_serves_what_it_served_before(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        agent = running_agent(api)
        agent.log(*["x" * 1000] * 2000)
        cases = api.use_cases
        batches = log_batches.LogBatches(cases.backend.logs, cases.log_executors, cache_bytes=2**20)

        async def read_all() -> list[log_batches.LogBatch]:
            read: list[log_batches.LogBatch] = []
            after = 0
            while not read or read[-1].cursor > after:
                after = read[-1].cursor if read else 0
                request = log_batches.LogRequest("p", "job", after, None, EVERYTHING, LogFormat.BATCH)
                read.append(await batches.next(request, 0.0, behind=True))
            return read

        first = asyncio.run(read_all())
        assert first[-1].cursor == 2006
        assert 0 < batches._size <= 2**20
        assert batches._size == sum(len(batch.data) + 512 for batch in batches._cached.values())
        assert [batch.data for batch in asyncio.run(read_all())] == [batch.data for batch in first]


def pages_back(api: Server, limit: int, **params: Any) -> Iterator[dict[str, Any]]:
    page = api.get(f"{LOGS}/page", limit=limit, **params)
    yield page
    while page["earlier"]:
        page = api.get(f"{LOGS}/page", before=page["first"], limit=limit, **params)
        yield page


def test_first_line_that_matters_is_found_from_anywhere(api: Server, agent: ScriptedAgent) -> None:
    agent.log("fine", "ERROR:root:one", "fine")
    agent.log("CRITICAL:root:two", task="worker-replica-0")
    lines = one_by_one(api)
    errors = [one[0] for one in lines if one[6] in ("ERROR", "CRITICAL")]
    assert len(errors) == 2
    assert api.get(f"{LOGS}/first", severity="ERROR") == {"cursor": errors[0], "looked": errors[0], "more": True}
    assert api.get(f"{LOGS}/first", severity="ERROR", after=errors[0])["cursor"] == errors[1]
    assert api.get(f"{LOGS}/first", severity="ERROR", task="worker-replica-0")["cursor"] == errors[1]
    beyond = api.get(f"{LOGS}/first", severity="ERROR", after=2**53 - 1)
    assert (beyond["cursor"], beyond["more"]) == (None, False)
    nothing = api.get(f"{LOGS}/first", severity="ERROR", after=errors[1])
    assert nothing == {"cursor": None, "looked": len(lines), "more": False}


def test_long_log_is_an_event_for_each_500_lines_and_searched_by_a_bounded_amount_of_work(
    api: Server, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.log(*["fine"] * 3000, "needle")
    sizes = [len(data) for data, _ in batches(api)]
    assert sum(sizes) > 3000
    assert sizes[:-1] == [500] * (len(sizes) - 1)
    monkeypatch.setattr("trainyard_server.storage.logs.job_log._SCAN", 100)
    monkeypatch.setattr("trainyard_server.services.logs.pages._FIRST_STEPS", 5)
    after, calls = 0, 0
    while (found := api.get(f"{LOGS}/first", search="needle", after=after))["cursor"] is None:
        assert found["more"]
        assert found["looked"] == after + 500
        after, calls = found["looked"], calls + 1
    assert calls == 6
    assert found["cursor"] == len(one_by_one(api))
    page = api.get(f"{LOGS}/page", search="needle", before=found["cursor"])
    assert (page["lines"], page["first"], page["earlier"]) == ([], found["cursor"] - 100, True)


def test_download_of_a_large_log_is_whole_and_sent_in_parts(api: Server, agent: ScriptedAgent) -> None:
    agent.log(*[f"line {n} " + "x" * 1000 for n in range(5000)])

    async def parts() -> list[bytes]:
        text = api.use_cases.log_pages.text("p", "job", LogFilter(frozenset({"master-replica-0"})))
        first = await anext(text)
        await asyncio.to_thread(agent.log, "later")
        return [first, *[part async for part in text]]

    read = asyncio.run(parts())
    assert max(map(len, read)) < 1.1 * 2**20
    assert [row.split()[3] for row in b"".join(read).decode().splitlines()] == list(map(str, range(5000)))


@on_every_database
def test_job_event_is_sent_again_when_a_state_changes_and_not_with_every_line(
    api: Server, agent: ScriptedAgent
) -> None:
    cases = api.use_cases
    statuses = JobStatusReader(cases.controller, cases.job_details)
    key = cases.log_streaming.check("p", "job")
    first = statuses.current("p", "job", key, None)
    agent.log('{"event": "progress", "step": 7, "steps": 9, "loss": 0.5}')
    cases.backend.progress.flush()
    second = statuses.current("p", "job", key, first)
    assert [one.detail.runs[0].replicas[0].step for one in (first, second)] == [None, 7]
    assert second.job is first.job
    agent.exit("worker-replica-0")
    third = statuses.current("p", "job", key, second)
    assert third.job is not first.job
    assert third.end is None
    agent.exit()
    fourth = statuses.current("p", "job", key, third)
    assert b"SUCCEEDED" in fourth.job
    assert fourth.until == len(one_by_one(api))


async def test_status_is_not_read_again_when_only_the_log_has_changed(
    api: Server, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = api.use_cases
    statuses = JobStatusReader(cases.controller, cases.job_details)
    key = cases.log_streaming.check("p", "job")
    first = await statuses.poll("p", "job", key, None, frozenset())
    monkeypatch.setattr(cases.job_details, "detail", None)
    assert await statuses.poll("p", "job", key, first, frozenset()) is first
    later = await statuses.poll("p", "job", key, first, frozenset({log_topic(key)}))
    assert later.changed_at > first.changed_at
    assert (later.job, later.detail) == (first.job, first.detail)
