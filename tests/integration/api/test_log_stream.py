"""Logs as server-sent events, and the answers that wait for news."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from httpx_sse import ServerSentEvent, connect_sse

from integration.api.api_support import ADMIN, ScriptedAgent, Server, eventually, serving
from trainyard_protocol.sync import SyncRequest

LOGS = "/trainyard/v1/projects/p/jobs/job/logs"


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent with a running job."""
    agent = ScriptedAgent(api)
    agent.sync()
    api.create()
    api.tick()
    agent.sync()
    agent.start()
    return agent


@contextmanager
def following(api: Server, **headers: str) -> Iterator[list[ServerSentEvent]]:
    """What a follower has received so far, while it follows; the stream must end by itself in the end."""
    received: list[ServerSentEvent] = []

    def read(address: str) -> None:
        with (
            httpx.Client(base_url=address, timeout=20) as client,
            connect_sse(client, "GET", LOGS, params={"follow": "true"}, headers=ADMIN | headers) as source,
        ):
            for event in source.iter_sse():
                received.append(event)  # noqa: PERF402 - each is wanted as soon as it is here

    with serving(api.app) as address:
        reader = threading.Thread(target=read, args=(address,))
        reader.start()
        try:
            yield received
        finally:
            api.use_cases.backend.notifier.close()
            reader.join()


def texts(events: list[ServerSentEvent]) -> list[str]:
    return [event.json()["text"] for event in events if event.event == "log"]


def test_stream_without_follow_is_everything_there_is(api: Server, agent: ScriptedAgent) -> None:
    agent.log("one", "two")
    events = api.stream()
    assert [kind for kind, *_ in events] == ["job"] + ["log"] * 8 + ["end"]
    assert events[0][1]["state"] == "RUNNING"
    assert events[0][1]["events"] == []
    logs = [data for kind, data, _ in events if kind == "log"]
    assert [data["cursor"] for data in logs] == list(range(1, 9))
    assert [ident for kind, _, ident in events if kind == "log"] == [str(n) for n in range(1, 9)]
    assert (logs[-1]["task"], logs[-1]["run"], logs[-1]["number"], logs[-1]["text"]) == (
        "master-replica-0",
        1,
        1,
        "two",
    )
    assert events[-1][1] == {
        "state": "RUNNING",
        "lines": {"0/service": 6, "1/master-replica-0": 2},
        "sha256": {},
        "kept": {},
    }


@pytest.mark.parametrize("where", [{"last": "7"}, {"after": 7}, {"last": "7", "after": 1}])
def test_stream_resumes_after_the_last_line_that_was_read(
    api: Server, agent: ScriptedAgent, where: dict[str, object]
) -> None:
    agent.log("one", "two")
    assert [data["text"] for kind, data, _ in api.stream(**where) if kind == "log"] == ["two"]


def test_stream_of_one_task_keeps_the_cursors(api: Server, agent: ScriptedAgent) -> None:
    agent.log("one", "two")
    events = api.stream(task="master-replica-0")
    assert [(data["cursor"], data["text"]) for kind, data, _ in events if kind == "log"] == [
        (7, "one"),
        (8, "two"),
    ]
    assert len([1 for kind, *_ in api.stream(task="service") if kind == "log"]) == 6


@pytest.mark.parametrize(
    "params", [{"task": "nonsense"}, {"after": -1}, {"after": "x"}, {"follow": "perhaps"}]
)
def test_stream_with_a_bad_parameter_is_400(
    api: Server, agent: ScriptedAgent, params: dict[str, object]
) -> None:
    assert api.client.get(LOGS, params=params, headers=ADMIN).status_code == 400


def test_stream_with_a_bad_last_event_id_is_400(api: Server, agent: ScriptedAgent) -> None:
    assert api.client.get(LOGS, headers=ADMIN | {"Last-Event-ID": "x"}).status_code == 400


def test_severity_is_what_the_line_says_of_itself(api: Server, agent: ScriptedAgent) -> None:
    agent.log('{"severity": "warning", "loss": 1}', "ERROR:root:no", "plain")
    logs = [data for kind, data, _ in api.stream(task="master-replica-0") if kind == "log"]
    assert [data["severity"] for data in logs] == ["WARNING", "ERROR", "INFO"]


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


def test_follower_that_comes_back_gets_only_the_rest(api: Server, agent: ScriptedAgent) -> None:
    agent.log("one", "two", "three")
    agent.exit()
    with following(api, **{"Last-Event-ID": "8"}) as received:
        eventually(lambda: received and received[-1].event == "end")
    assert texts(received) == ["three", "The replica master 0 completed.", "Job completed successfully."]


def test_follower_is_let_go_when_the_server_stops(api: Server, agent: ScriptedAgent) -> None:
    with following(api) as received:
        eventually(lambda: texts(received))
    assert "end" not in [event.event for event in received]


def test_quiet_stream_says_that_it_lives(api: Server, agent: ScriptedAgent) -> None:
    async def first_pause() -> None:
        cases = api.use_cases
        key = cases.streaming.check("p", "job", "")
        stream = cases.streaming.stream("p", "job", key=key, task="", after=6, follow=True)
        assert (await anext(stream)) is not None  # the job
        object.__setattr__(cases.backend.settings, "ping_s", 0.001)
        assert (await anext(stream)) is None
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(first_pause())


def request(agent: ScriptedAgent, wait_s: float, seen: str = "") -> SyncRequest:
    return SyncRequest(agent=agent.info, runs=agent.reports(), wait_s=wait_s, seen=seen)


async def test_sync_with_something_to_say_does_not_wait(api: Server) -> None:
    agent = ScriptedAgent(api)
    async with asyncio.timeout(10):
        answer = await api.use_cases.syncing.sync(request(agent, wait_s=1000))
    assert answer.runs == ()


async def test_sync_with_nothing_to_say_is_held_until_there_is(api: Server) -> None:
    agent, syncing = ScriptedAgent(api), api.use_cases.syncing
    async with asyncio.timeout(10):
        first = await syncing.sync(request(agent, wait_s=0))
        held = asyncio.create_task(syncing.sync(request(agent, wait_s=1000, seen=first.version)))
        await asyncio.sleep(0.05)
        assert not held.done()
        await asyncio.to_thread(api.use_cases.jobs.create, "p", {"jobId": "j", "trainingInput": BASIC})
        await asyncio.to_thread(api.use_cases.conductor.tick)
        answer = await held
    assert [order.job_id for order in answer.runs] == ["j"]
    assert answer.version != first.version


async def test_sync_with_nothing_to_say_answers_when_the_wait_is_over(api: Server) -> None:
    agent, syncing = ScriptedAgent(api), api.use_cases.syncing
    async with asyncio.timeout(10):
        first = await syncing.sync(request(agent, wait_s=0))
        again = await syncing.sync(request(agent, wait_s=0.05, seen=first.version))
    assert again == first


async def test_sync_that_is_newer_ends_the_older_and_two_agents_of_one_name_are_reported(
    api: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def listens() -> bool:
        return True

    agent, syncing = ScriptedAgent(api), api.use_cases.syncing
    async with asyncio.timeout(10):
        first = await syncing.sync(request(agent, wait_s=0))
        held = asyncio.create_task(syncing.sync(request(agent, wait_s=1000, seen=first.version), listens))
        await asyncio.sleep(0.05)
        with caplog.at_level(logging.WARNING):
            newer = await syncing.sync(request(agent, wait_s=0, seen=first.version))
            assert await held == newer
    assert "Two agents call themselves id-of-laptop" in caplog.text


async def test_sync_is_let_go_when_the_server_stops(api: Server) -> None:
    agent, syncing = ScriptedAgent(api), api.use_cases.syncing
    async with asyncio.timeout(10):
        first = await syncing.sync(request(agent, wait_s=0))
        held = asyncio.create_task(syncing.sync(request(agent, wait_s=1000, seen=first.version)))
        await asyncio.sleep(0.05)
        api.use_cases.backend.notifier.close()
        assert await held == first


BASIC = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "trainer.task"}
