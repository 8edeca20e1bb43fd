"""An engine that is registered is all that the agent's command needs."""

import asyncio
from pathlib import Path

import pytest

from beds.open_engines import agent_settings
from beds.run_ids import unique_run
from beds.token_files import write_token
from trainyard_agent.engines import registry
from trainyard_agent.engines.fake.engine import FakeEngine
from trainyard_agent.main import _serve
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.agents import CLUSTER
from unit.agent.stub_server import TOKEN, StubServer

RUN, TASK = unique_run("1"), "master-replica-0"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A fake engine in the registry."""
    engine = FakeEngine()
    monkeypatch.setitem(registry.ENGINES, "fake", "trainyard_agent.engines.fake")
    monkeypatch.setattr("trainyard_agent.engines.fake.engine.ENGINE", engine)
    return engine


@pytest.mark.usefixtures("engine")
async def test_engine_that_is_registered_is_all_that_the_command_needs(tmp_path: Path) -> None:
    write_token(tmp_path / "token", TOKEN)
    (tmp_path / "state").mkdir()
    server = StubServer()
    server.order(RUN, TASK)
    with server.listening() as url:
        words = ["--server", url, "--token-file", str(tmp_path / "token"), "--fake-cpus", "2"]
        settings = agent_settings(*words, "--state-dir", str(tmp_path / "state"), "--runtime", "fake")
        agent = asyncio.create_task(_serve(settings))
        async with asyncio.timeout(60):
            while not _runs(server):
                await asyncio.sleep(0.01)
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)

    info = server.requests[-1].agent
    assert (info.kind, info.runtime, info.capacity.cpus) == (CLUSTER, "fake", (0, 1))
    assert not (tmp_path / "state" / "lease.json").exists()


def _runs(server: StubServer) -> bool:
    report = server.reports.get(RUN, {}).get(TASK)
    return report is not None and report.state is ReplicaState.RUNNING
