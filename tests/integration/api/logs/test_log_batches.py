"""Many lines in one event, pages in both directions, the first line that matters, and the log as a file."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_server.services.logs import batches as log_batches
from trainyard_server.services.logs.formats import LogFormat
from trainyard_server.storage.logs.filter import EVERYTHING

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
    for _ in range(6):
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
    {"task": ["service", "worker-replica-0"]},
    {"severity": "WARNING"},
    {"search": "NEEDLE", "task": "master-replica-0"},
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
