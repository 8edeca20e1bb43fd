"""maxWaitTime and maxRunningTime to the tick: nothing happens just before, and at the moment the job is cancelled.
Over restarts of the server, new runs and the pauses before them; on a clock that only the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from beds.world import World
from trainyard_agent.engines.fake import FOREVER, Exit, Script, by_module
from trainyard_protocol.states import JobState

PROGRAMS = by_module(
    {
        "forever.task": {"*": FOREVER},
        "killed.task": {"*": Script(((1.0, Exit(137)),))},
        "killed_late.task": {"*": Script(((80.0, Exit(137)),))},
    }
)
JUST = 0.001
WAITED = "The job was cancelled because it waited longer than its maxWaitTime of 1800s before it ran."
RAN = "The job was cancelled because it ran longer than its maxRunningTime of 100s."


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path, backoff_first_s=30.0)
    yield world
    await world.close()


async def state_after(world: World, seconds: float) -> JobState:
    """The job at the next tick of the server, before any agent hears of it."""
    world.clock.advance(seconds)
    world.tick()
    return (await world.detail("j")).state


async def test_job_that_waits_is_cancelled_at_its_max_wait_time(world: World) -> None:
    await world.submit("j", module="forever.task", scheduling={"maxWaitTime": "1800s"})
    world.clock.advance(1000)
    world.restart_server()
    assert await state_after(world, 800 - JUST) is JobState.QUEUED
    world.restart_server()
    assert await state_after(world, JUST) is JobState.CANCELLED
    assert (await world.detail("j")).job["errorMessage"] == WAITED


async def test_job_that_is_being_prepared_waits_still(world: World) -> None:
    machine = world.machine("m", PROGRAMS)
    await world.settle()
    await world.submit("j", module="forever.task", scheduling={"maxWaitTime": "1800s"})
    world.tick()  # placed, and its agent does not hear of it
    machine.network.cut = True
    assert await state_after(world, 1800 - JUST) is JobState.PREPARING
    assert await state_after(world, JUST) is JobState.CANCELLING
    machine.network.cut = False
    await world.settle()
    assert (await world.detail("j")).state is JobState.CANCELLED
    assert (await world.detail("j")).job["errorMessage"] == WAITED


async def test_new_run_has_the_whole_wait_again_and_its_pause_is_part_of_it(world: World) -> None:
    machine = world.machine("m", PROGRAMS)
    await world.settle()
    await world.submit("j", module="killed.task", scheduling={"maxWaitTime": "1800s"})
    await world.settle()
    world.clock.advance(1)
    await world.settle()
    assert (await world.detail("j")).state is JobState.QUEUED
    machine.network.cut = True  # so that the new run, placed after 30 s, waits for its agent
    assert await state_after(world, 30) is JobState.PREPARING
    assert await state_after(world, 1770 - JUST) is JobState.PREPARING
    assert await state_after(world, JUST) is JobState.CANCELLING
    assert any(event.message == WAITED for event in (await world.detail("j")).events)


async def test_job_that_runs_is_cancelled_at_its_max_running_time(world: World) -> None:
    world.machine("m", PROGRAMS)
    await world.settle()
    await world.submit("j", module="forever.task", scheduling={"maxRunningTime": "100s"})
    await world.settle()
    assert await state_after(world, 100 - JUST) is JobState.RUNNING
    world.restart_server()
    assert await state_after(world, JUST) is JobState.CANCELLING
    await world.settle()
    assert (await world.detail("j")).state is JobState.CANCELLED
    assert (await world.detail("j")).job["errorMessage"] == RAN


async def test_running_time_goes_on_over_the_pause_and_a_restart_and_ends_the_next_run(world: World) -> None:
    world.machine("m", PROGRAMS)
    await world.settle()
    await world.submit("j", module="killed_late.task", scheduling={"maxRunningTime": "100s"})
    await world.settle()
    world.clock.advance(80)
    await world.settle()
    assert (await world.detail("j")).state is JobState.QUEUED
    world.restart_server()
    assert await state_after(world, 30 - JUST) is JobState.QUEUED, "its maxRunningTime is over, and it does not run"
    world.clock.advance(JUST)
    await world.settle()
    assert (await world.detail("j")).state is JobState.CANCELLED
    assert (await world.detail("j")).job["errorMessage"] == RAN
