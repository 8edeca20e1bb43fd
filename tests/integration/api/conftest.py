from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.api.api_support import Clock, Server, server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    """A server with an empty data directory and a clock that stands still."""
    with server(tmp_path / "server", clock) as running:
        yield running
