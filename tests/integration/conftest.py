from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from beds.world import World
from integration.api.api_support import Clock, server, serving
from integration.shells import Shell


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Server and agents in this process, on a clock that only the test moves."""
    world = World(tmp_path / "server")
    yield world
    await world.close()


@pytest.fixture
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is logged in nowhere."""
    for name in ("SERVER", "TOKEN", "STATE_DIR", "CA_FILE", "PROJECT"):
        monkeypatch.delenv(f"TRAINYARD_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_login: None
) -> Iterator[Shell]:
    """A user's shell, and a server of its own."""
    with server(tmp_path / "server", Clock()) as api, serving(api.app) as url:
        yield Shell(api, url, capsys, monkeypatch)
