"""Every page's changes over a socket: all parts first, which are those of the page itself."""

import json
import re

import httpx
import pytest

from integration.api.api_support import VERA, ScriptedAgent, Server, serving

JOB = "/projects/p/jobs/job"


def first_parts(url: str, path: str) -> dict[str, str]:
    with httpx.stream("GET", f"{url}/live{path}", headers=VERA, trust_env=False, timeout=30) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        for line in lines:
            if line == "event: parts":
                parts: dict[str, str] = json.loads(next(lines).removeprefix("data: "))
                return parts
    raise AssertionError("the stream ended without its parts")


@pytest.mark.parametrize(
    "path", ["/", "/cluster", JOB, *(f"{JOB}/{tab}" for tab in ("logs", "metrics", "config", "files"))]
)
def test_stream_of_a_page_begins_with_its_parts(api: Server, path: str) -> None:
    api.create("job")
    agent = ScriptedAgent(api)
    agent.sync()
    agent.sync()
    agent.start()
    named = set(re.findall(r'id="live-([\w-]+)"', api.client.get(path, headers=VERA).text))
    with serving(api.app) as url:
        assert set(first_parts(url, path)) == named
    assert named
    assert not api.app.state.dashboard.broadcaster._channels
