"""The agent's command on a platform that is no machine."""

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from beds.run_ids import unique_run
from beds.token_files import write_token
from trainyard_agent.engines.fake import FOREVER, FakeHost, FakeRuntime
from trainyard_agent.host.clock import SystemClock
from trainyard_agent.host.identity import Identity
from trainyard_agent.lease.lease import Lease
from trainyard_agent.main import _serve
from trainyard_agent.options import parse
from trainyard_agent.platforms import MACHINE, PLATFORMS
from trainyard_agent.runtime_selection import OpenRuntimes
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import ReadyAtOnce
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.agents import CLUSTER
from unit.agent.stub_server import KEY, TOKEN, StubServer

RUN, TASK = unique_run("1"), "master-replica-0"


async def test_platform_that_is_registered_is_all_that_the_command_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(SystemClock(), lambda _: FOREVER)

    @contextmanager
    def opened(_options: argparse.Namespace, _id: str, _client: ServerClient) -> Iterator[OpenRuntimes]:
        yield OpenRuntimes(FakeRuntime(host), ReadyAtOnce(), lambda info: info)

    capacity = Capacity(cpus=(0,), memory_bytes=1)
    engine = replace(
        MACHINE,
        kind=CLUSTER,
        identity=lambda _: Identity("the-cluster", KEY),
        capacity=lambda _: capacity,
        lease=lambda _, clock: Lease(clock),
        open=opened,
    )
    monkeypatch.setitem(PLATFORMS, "engine", engine)
    write_token(tmp_path / "token", TOKEN)
    server = StubServer()
    server.order(RUN, TASK)
    with server.listening() as url:
        words = [
            "--server",
            url,
            "--token-file",
            str(tmp_path / "token"),
            "--state-dir",
            str(tmp_path / "state"),
        ]
        agent = asyncio.create_task(_serve(parse([*words, "--runtime", "engine"])))
        async with asyncio.timeout(60):
            while not _runs(server):
                await asyncio.sleep(0.01)
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)

    info = server.requests[-1].agent
    assert (info.agent_id, info.kind, info.capacity) == ("the-cluster", CLUSTER, capacity)
    assert not (tmp_path / "state").exists()


def _runs(server: StubServer) -> bool:
    report = server.reports.get(RUN, {}).get(TASK)
    return report is not None and report.state is ReplicaState.RUNNING
