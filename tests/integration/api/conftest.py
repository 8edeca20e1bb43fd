from collections.abc import Iterator
from pathlib import Path

import pytest

from beds import live_rows
from integration.api.api_support import Clock, ScriptedAgent, Server, server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    """A server with an empty data directory and a clock that stands still. At the end of the test its memory is what
    its database has."""
    with server(tmp_path / "server", clock) as running:
        yield running
        assert live_rows.differences(running.use_cases.backend.store) == []


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent that has nothing to do."""
    agent = ScriptedAgent(api)
    agent.sync()
    return agent
