"""Gangs over several agents, of which some do not reach each other: the others have them, and nobody is blamed who is
reached."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from beds.world import World
from trainyard_agent.engines.fake import FOREVER, by_module
from trainyard_protocol.answers.why import QueueExplanationView
from trainyard_protocol.states import JobState, Reason

PROGRAMS = by_module({"forever.task": {"*": FOREVER}})
NAMES = ("box-1", "box-2", "box-3")


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[World]:
    """Three machines of two CPUs that ask each other. Nobody reaches the first."""
    world = World(tmp_path, has_peers=True)
    await _join(world)
    yield world
    await world.close()


async def test_machine_behind_nat_has_no_part_of_a_gang_that_others_hold(asking: World) -> None:
    await _go_on(asking, 20)
    await asking.submit("j", workers=3, module="forever.task")
    await asking.settle(6)
    detail = await asking.detail("j")
    assert (detail.state, [run.agent for run in detail.runs]) == (JobState.RUNNING, ["box-2, box-3"])
    asking.restart_server()
    await asking.submit("large", workers=5, module="forever.task")
    await asking.cancel("j")
    await asking.settle(6)
    about = "machine box-1 cannot be reached by box-2 and box-3: give it a group of its own with --group NAME"
    assert about in (await asking.detail("large")).waiting
    answer = await asking.call("GET", "/trainyard/v1/projects/p/jobs/large/why")
    why = QueueExplanationView.model_validate_json(answer.content)
    assert (about in why.summary, why.kind) == (True, "apart")
    assert {view.agent: view.lacks for view in why.agents}["box-1"] == "cannot be reached by box-2 and box-3"
    assert not (await asking.detail("large")).runs, "a gang that cannot meet is not tried"

    asking.machines["box-1"].behind_nat = False
    await _go_on(asking, 20)
    await asking.settle(6)
    assert ((await asking.detail("large")).state, len((await asking.detail("large")).runs)) == (JobState.RUNNING, 1)


async def test_gang_that_did_not_meet_gets_other_machines_and_costs_no_retry(world: World) -> None:
    """The agents have not asked each other, as those of several servers never do."""
    await _join(world)
    await world.begin("j", 6, workers=3, module="forever.task")
    world.clock.advance(2)
    await world.settle(6)
    detail = await world.detail("j")
    first, second = detail.runs
    assert first.verdict is not None
    assert (first.verdict.reason, first.agent) == (Reason.UNREACHED, "box-1, box-2")
    assert first.verdict.message.startswith(
        "The replica worker 1 could not be started yet on agent box-2: The machine of worker-replica-1, "
        "worker-replica-2 does not reach master-replica-0 at box-1:"
    )
    assert "--group" in first.verdict.message
    assert (detail.state, second.agent) == (JobState.RUNNING, "box-2, box-3")
    assert "Waiting costs no retry." in str(detail.events)
    with world.app.state.use_cases.backend.store.read() as reader:
        assert [row.failures for row in reader.agents()] == [[], [], []], "no machine failed"


async def test_job_never_fails_of_machines_that_are_apart_and_starts_once_they_are_not(world: World) -> None:
    await _join(world)
    world.apart = True
    await world.submit("j", workers=3, module="forever.task")
    for _ in range(10):
        world.clock.advance(60)
        await world.settle(4)
    detail = await world.detail("j")
    assert detail.state in (JobState.QUEUED, JobState.PREPARING)
    assert {run.verdict.reason for run in detail.runs if run.verdict} == {Reason.UNREACHED}
    assert len(detail.runs) < 9, "they are tried less and less often"
    world.apart = False
    for _ in range(20):
        world.clock.advance(60)
        await world.settle(6)
        if (await world.detail("j")).state is JobState.RUNNING:
            break
    assert (await world.detail("j")).state is JobState.RUNNING


async def _join(world: World) -> None:
    for name in NAMES:
        world.machine(name, PROGRAMS, cpus=2)
    world.machines["box-1"].behind_nat = True
    await world.settle()


async def _go_on(world: World, for_s: float) -> None:
    for _ in range(int(for_s / 2)):
        world.clock.advance(2)
        await world.settle(1)
