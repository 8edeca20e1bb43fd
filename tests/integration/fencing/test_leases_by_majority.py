"""Short leases of agents that reach each other, with the real server and agents: a lost machine is given up soon, and a
server that is away stops nothing."""

import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from beds.world import Machine, World
from trainyard_agent.engines.fake import FOREVER, by_module
from trainyard_protocol.answers.cluster import ServerStatus
from trainyard_protocol.states import JobState, Reason
from trainyard_protocol.wire.peers import SHORT_LEASE_S

PROGRAMS = by_module({"forever.task": {"*": FOREVER}})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path, has_peers=True)
    yield world
    await world.close()


async def go_on(world: World, for_s: float, step_s: float = 2) -> None:
    for _ in range(int(for_s / step_s)):
        world.clock.advance(step_s)
        await world.settle(1)


async def have_leases(world: World, *lease_s: float) -> None:
    """Go on until the machines have these leases, for 3 minutes at most."""
    for _ in range(90):
        if list(leases(world).values()) == list(lease_s):
            return
        await go_on(world, 2)
    raise AssertionError(leases(world))


async def trained(world: World) -> None:
    """Three machines with short leases, of which the first has a job."""
    for name in sorted({"box-1", "box-2", "box-3"} - world.machines.keys()):
        world.machine(name, PROGRAMS)
    await world.settle()
    await world.submit("j", module="forever.task")
    await have_leases(world, *[SHORT_LEASE_S] * 3)
    assert (await world.detail("j")).runs[0].agent == "box-1"


def leases(world: World) -> dict[str, float | None]:
    with world.app.state.use_cases.backend.store.read() as reader:
        return {str(row.info["name"]): row.lease_s for row in reader.agents()}


def alive(machine: Machine) -> list[str]:
    """Replicas that have not ended."""
    reports = [report for run_id in machine.host.runs for report in machine.runtime.observe(run_id)]
    return [report.task for report in reports if report.exit is None]


async def runs(world: World) -> list[tuple[str, Reason | None]]:
    return [(run.agent, run.verdict.reason if run.verdict else None) for run in (await world.detail("j")).runs]


async def test_machine_that_only_the_server_does_not_reach_stops_its_replicas_too(world: World) -> None:
    """The others say that they have answers."""
    await trained(world)
    world.machines["box-1"].network.cut = True
    await go_on(world, 52)
    assert [verdict for _, verdict in await runs(world)] == [Reason.HOST_LOST, None]
    assert not alive(world.machines["box-1"])


async def test_server_that_is_away_for_an_hour_stops_nothing(world: World) -> None:
    await trained(world)
    for machine in world.machines.values():
        machine.network.cut = True
    for _ in range(720):
        world.clock.advance(5)
        for machine in world.machines.values():
            await machine.step()
    world.restart_server()
    for machine in world.machines.values():
        machine.network.cut = False
    await go_on(world, 10)
    assert leases(world) == {f"box-{number}": SHORT_LEASE_S for number in (1, 2, 3)}, "it remembers them"
    await go_on(world, 60)
    assert await runs(world) == [("box-1", None)]
    assert (await world.detail("j")).state is JobState.RUNNING


async def test_agents_that_do_not_reach_each_other_have_the_long_lease(world: World) -> None:
    world.apart = True
    for number in (1, 2, 3):
        world.machine(f"box-{number}", PROGRAMS)
    await go_on(world, 60)
    assert set(leases(world).values()) == {world.settings.lease_s}
    world.apart = False
    await have_leases(world, *[SHORT_LEASE_S] * 3)


async def test_server_without_a_majority_waits_and_a_cancel_gives_up(world: World) -> None:
    """Two of three machines are lost at once: the server and the third are no majority of four."""
    await trained(world)
    for name in ("box-1", "box-2"):
        world.machines[name].network.cut = world.machines[name].alone = True
    await go_on(world, 700, step_s=20)
    assert await runs(world) == [("box-1", None)]
    await world.cancel("j")
    await go_on(world, 4)
    assert (await world.detail("j")).state is JobState.CANCELLED


async def stay_short(world: World, names: set[str], for_s: float) -> None:
    """Go on; at no moment may one of these machines lose its short lease."""
    for _ in range(int(for_s / 2)):
        await go_on(world, 2)
        assert {leases(world)[name] for name in names} == {SHORT_LEASE_S}, leases(world)


def leave(world: World, name: str) -> None:
    world.machines[name].network.cut = world.machines[name].alone = True


@pytest.mark.parametrize(("pause_s", "removed"), [(30, False), (4, True)])
async def test_machine_that_is_lost_after_another_has_left_costs_its_jobs_less_than_a_minute(
    world: World, pause_s: float, removed: bool
) -> None:
    """One that stops is missed within 20 s; one that is removed is known to be gone at once."""
    await trained(world)
    leave(world, "box-3")
    if removed:
        assert (await world.call("DELETE", "/trainyard/v1/agents/box-3")).status_code == 200
    await stay_short(world, {"box-1", "box-2"}, pause_s)
    leave(world, "box-1")
    await go_on(world, 52)
    assert not alive(world.machines["box-1"])
    assert await runs(world) == [("box-1", Reason.HOST_LOST), ("box-2", None)]


async def lease_shown(world: World, name: str) -> str:
    """The cell of `agents list`."""
    status = ServerStatus.model_validate_json((await world.call("GET", "/trainyard/v1/status")).content)
    (agent,) = [agent for agent in status.agents if agent.name == name]
    assert agent.lease is not None
    return agent.lease.text(world.clock.now())


async def why(world: World) -> str:
    """The sentence of `jobs why`, with the times as seconds from now."""
    summary = (await world.call("GET", "/trainyard/v1/projects/p/jobs/j/why")).json()["summary"]

    def relative(time: re.Match[str]) -> str:
        return f"{(datetime.fromisoformat(time[0]) - world.clock.now()).total_seconds():+.0f} s"

    return re.sub(r"\d{4}-\S+Z", relative, summary.partition(" It waits ")[2])


async def test_lease_and_the_wait_for_it_are_shown(world: World) -> None:
    world.machine("box-1", PROGRAMS)
    await go_on(world, 4)
    assert await lease_shown(world, "box-1") == "none"
    await trained(world)
    assert await lease_shown(world, "box-1") == "45 s by majority"
    assert await why(world) == ""
    leave(world, "box-1")
    await go_on(world, 34)
    assert await lease_shown(world, "box-1") == "45 s by majority, 11 s left"
    silent = "for agent box-1, which is silent since -34 s and has a lease of 45 s"
    assert await why(world) == f"{silent}: its replicas count as lost at +11 s."
    await world.cancel("j")
    assert await why(world) == f"{silent}, until +11 s at the latest."
    await go_on(world, 12)
    detail = await world.detail("j")
    assert (detail.state, detail.waiting) == (JobState.CANCELLED, "")
    assert await lease_shown(world, "box-1") == "45 s by majority, over"
    leave(world, "box-2")
    leave(world, "box-3")
    await go_on(world, 60)
    assert await lease_shown(world, "box-3") == "45 s by majority, which does not answer: 24.0 h left"
