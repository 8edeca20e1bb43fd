"""Usage of replicas, from the processes of a real agent to the answers of the server."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from beds.world import TOKENS, World
from trainyard_agent.agent import Agent
from trainyard_agent.engines.fake import FOREVER, Script, by_module
from trainyard_agent.engines.process.runtime import ProcessRuntime
from trainyard_agent.host.clock import SystemClock
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import ReadyAtOnce
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.views.usage import UsageSeries, UsageView
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.domain.access.permissions import Role

PATIENCE_S = 120.0
MIB = 1 << 20

# Burns one core for a while, in a child that ends, and then in one that is still there; and holds 200 MB.
BUSY = """
import os, time
held = b"x" * 200_000_000
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
if os.fork() == 0:
    burn(0.3)
    os._exit(0)
os.wait()
print("one is over", flush=True)
if os.fork() == 0:
    burn(100_000)
time.sleep(100_000)
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "server")
    yield world
    await world.close()


async def usage(world: World, job_id: str = "j") -> UsageView:
    answer = await world.call("GET", f"/trainyard/v1/projects/p/jobs/{job_id}/usage")
    assert answer.status_code == 200, answer.text
    return UsageView.model_validate_json(answer.content)


async def test_what_scripted_replicas_use_is_told_round_by_round(world: World) -> None:
    programs = {"master-replica-0": Script(cores=1.75, memory_bytes=5 * MIB), "*": FOREVER}
    machine = world.machine("m", by_module({"prog.task": programs}))
    await machine.step()
    await world.submit("j", workers=1)
    await world.settle()
    for _ in range(3):
        world.clock.advance(5)
        await machine.step()
    chief, worker = (await usage(world)).replicas
    assert chief.cpu[-3:] == (1.75, 1.75, 1.75)
    assert chief.memory_bytes[-1] == 5 * MIB
    assert worker.cpu[-1] == 1.0
    (run,) = (await world.detail("j")).runs
    assert [replica.cpu_used for replica in run.replicas] == [1.75, 1.0]


async def test_agent_that_comes_back_goes_on_measuring(world: World) -> None:
    machine = world.machine("m", by_module({"prog.task": {"*": Script(cores=2.0)}}))
    await machine.step()
    await world.submit("j")
    await world.settle()
    machine.boot()
    for _ in range(2):
        world.clock.advance(5)
        await machine.step(2)
    (chief,) = (await usage(world)).replicas
    assert chief.cpu[-1] == 2.0
    assert all(cpu in (None, 2.0) for cpu in chief.cpu)


async def test_measurements_that_are_lost_on_the_way_change_nothing_else(world: World) -> None:
    machine = world.machine("m", by_module({"prog.task": {"*": FOREVER}}))
    await machine.step()
    await world.submit("j")
    await world.settle()
    before = len((await usage(world)).replicas[0].time)
    machine.network.cut = True
    for _ in range(3):
        world.clock.advance(5)
        await machine.step()
    machine.network.cut = False
    world.clock.advance(5)
    await machine.step(2)
    (chief,) = (await usage(world)).replicas
    assert len(chief.time) > before
    assert chief.cpu[-1] == 1.0
    assert (await world.detail("j")).state == "RUNNING"


@asynccontextmanager
async def real_agent(world: World, state_dir: Path, programs: Path) -> AsyncIterator[None]:
    """An agent with its own loops, over processes of this machine, which run the modules in `programs`."""
    runtime = ProcessRuntime(state_dir)
    info = AgentInfo(
        agent_id="a",
        name="a",
        version="0",
        runtime="process",
        capacity_mode="fit",
        runs_images=False,
        capacity=Capacity(cpus=(min(os.sched_getaffinity(0)),), memory_bytes=1 << 34),
        replica_environment={"PYTHONPATH": str(programs)},
    )
    transport = httpx.ASGITransport(world.app)
    async with ServerClient("http://server", TOKENS[Role.AGENT], "0" * 64, transport=transport) as client:
        agent = Agent(runtime, client, ReadyAtOnce(), SystemClock(), lambda: info, usage_s=0.2)
        running = asyncio.create_task(agent.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for handle in runtime.recover():
                runtime.remove(handle.run_id)


def has_shown_itself(chief: UsageSeries) -> bool:
    """A good while after the first of the program's children is over."""
    return len(chief.time) > 8 and max(chief.memory_bytes) > 190_000_000 and (chief.cpu[-1] or 0) > 0.05


async def test_program_that_burns_a_core_and_holds_memory_shows_it(world: World, tmp_path: Path) -> None:
    (tmp_path / "prog").mkdir()
    (tmp_path / "prog" / "task.py").write_text(BUSY)
    async with real_agent(world, tmp_path / "state", tmp_path):
        await world.submit("j")
        async with asyncio.timeout(PATIENCE_S):
            chief = None
            while chief is None or not has_shown_itself(chief):
                await asyncio.sleep(0.2)
                world.tick()
                chief = next(iter((await usage(world)).replicas), None)
    assert max(chief.memory_bytes) < 1_000_000_000
    assert all(cpu is None or 0 <= cpu < 8 for cpu in chief.cpu)
    assert list(chief.time) == sorted(chief.time)
