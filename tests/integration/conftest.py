from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from beds.world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Server and agents in this process, on a clock that only the test moves."""
    world = World(tmp_path / "server")
    yield world
    await world.close()
