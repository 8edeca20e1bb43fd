from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.api.api_support import Clock, ScriptedAgent, Server, server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    """A server with an empty data directory and a clock that stands still."""
    with server(tmp_path / "server", clock) as running:
        yield running


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    """An agent that has nothing to do."""
    agent = ScriptedAgent(api)
    agent.sync()
    return agent
