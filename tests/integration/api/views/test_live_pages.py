"""Every page's changes over a socket: all parts first, which are those of the page itself."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from integration.api.api_support import VERA, ScriptedAgent, Server, eventually, running_agent, serving
from trainyard_server.storage.events.notifier import progress_topic

JOB = "/projects/p/jobs/job"

Messages = Iterator[dict[str, Any]]


@contextmanager
def messages(url: str, path: str) -> Iterator[Messages]:
    """The messages to an open page, by part, as `LivePart.since` returns them."""
    with httpx.stream("GET", f"{url}/live{path}", headers=VERA, trust_env=False, timeout=30) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-encoding"] == "gzip"
        lines = answer.iter_lines()
        yield (json.loads(next(lines).removeprefix("data: ")) for line in lines if line == "event: parts")


def test_stream_of_a_page_begins_with_its_parts(api: Server) -> None:
    running_agent(api)
    with serving(api.app) as url:
        for path in ("/", "/cluster", JOB, *(f"{JOB}/{tab}" for tab in ("logs", "metrics", "config", "files"))):
            named = set(re.findall(r'id="live-([\w-]+)"', api.client.get(path, headers=VERA).text))
            with messages(url, path) as parts:
                assert set(next(parts)) == named, path
            assert named, path
        eventually(lambda: not api.app.state.dashboard.broadcaster._channels)


def test_job_that_goes_on_sends_its_row_and_nothing_else(api: Server) -> None:
    for name in ("job", "another", "a_third"):
        api.create(name)
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    agent.begin()
    with serving(api.app) as url, messages(url, "/") as parts:
        whole = next(parts)["jobs"]
        assert len(whole["rows"]) == whole["frame"].count("data-same") == 3
        agent.log('{"event": "progress", "step": 7, "steps": 9, "loss": 0.5}')
        backend = api.use_cases.backend
        backend.notifier.publish(*map(progress_topic, backend.progress.flush()))
        message = next(parts)
        assert [set(part) for part in message.values()] == [{"rows"}]
        (row,) = message["jobs"]["rows"]
        assert 'data-key="p/job"' in row
        api.create("a_fourth")
        message = next(parts)
        (row,) = message["jobs"]["rows"]
        assert 'data-key="p/a_fourth"' in row
        assert re.findall('data-key="p/([^"]*)" data-same', message["jobs"]["frame"])[:2] == ["a_fourth", "a_third"]
        with messages(url, "/") as after_reconnecting:
            assert len(next(after_reconnecting)["jobs"]["rows"]) == 4
