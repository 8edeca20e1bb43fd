"""Evaluators: outside the cluster, started again alone, which end with the job."""

import json
from typing import Any

from beds.world import World
from trainyard_agent.engines.fake import FOREVER, Exit, Print, Script, by_module
from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState

EVALUATOR = "evaluator-replica-0"
CRASHES = Script(((0.1, Print("evaluates")), (1.0, Exit(3))))
PROGRAMS = by_module(
    {
        "long.task": {"master-replica-0": Script(((60.0, Exit(0)),)), EVALUATOR: CRASHES, "*": FOREVER},
        "endless.task": {EVALUATOR: CRASHES, "*": FOREVER},
    }
)
FIELDS: dict[str, Any] = {"evaluatorType": "local-1", "evaluatorCount": "1"}


async def pass_time(world: World, *seconds: float) -> None:
    for part in seconds:
        world.clock.advance(part)
        await world.settle(3)


async def test_evaluator_that_fails_is_started_again_alone_and_ends_with_the_job(world: World) -> None:
    machine = world.machine("m", PROGRAMS, cpus=3)
    await world.settle()
    await world.begin("j", workers=1, module="long.task", **FIELDS)
    await pass_time(world, 1.0, 1.0)  # it fails; it starts again

    detail = await world.detail("j")
    assert (detail.state, len(detail.runs)) == (JobState.RUNNING, 1)
    (gang,) = detail.runs
    assert [one.state for one in gang.replicas] == [ReplicaState.RUNNING] * 2 + [ReplicaState.EXITED]
    (again,) = gang.restarts
    assert (again.number, [one.task for one in again.replicas]) == (2, [EVALUATOR])
    assert again.replicas[0].cpus == gang.replicas[2].cpus
    assert "The replica evaluator 0 starts again, alone (restart 1 of 5)." in [event.message for event in detail.events]
    first, second = (launch for _, launch in machine.host.launches if launch.task == EVALUATOR)
    configs = [json.loads(launch.environment["TF_CONFIG"]) for launch in (first, second)]
    assert configs[0] == configs[1]
    assert configs[1]["cluster"].keys() == {"chief", "worker"}
    assert configs[1]["task"] == {"type": "evaluator", "index": 0}
    explained = (await world.call("GET", f"/trainyard/v1/projects/p/jobs/j/explain?task={EVALUATOR}&run=2")).json()
    assert json.loads(explained["environment"]["TF_CONFIG"]) == configs[1]

    # Nobody else gets its CPU meanwhile, and it counts once.
    agent = (await world.call("GET", "/trainyard/v1/status")).json()["agents"][0]
    assert (agent["cpus_given"], agent["runs"]) == (3, 1)
    await world.begin("next", module="endless.task")
    assert (await world.detail("next")).state is JobState.QUEUED

    world.restart_server()
    await machine.close()
    machine.boot()
    await pass_time(world, 1.0, 2.0, 60.0)
    await world.settle()
    detail = await world.detail("j")
    assert detail.state is JobState.SUCCEEDED
    assert len(detail.runs) == 1
    assert all(one.replicas[0].reason is Reason.PROGRAM_ERROR for one in detail.runs[0].restarts)
    assert {one.verdict and one.verdict.outcome for one in detail.runs[0].restarts} == {Outcome.FAILED}
    log = [(entry.run, entry.number) for entry in await world.log("j") if entry.task == EVALUATOR]
    assert log == [(number, 0) for number in range(1, 2 + len(detail.runs[0].restarts))]
    await world.settle()
    assert (await world.detail("next")).state is JobState.RUNNING
    page = (await world.call("GET", "/projects/p/jobs/j")).text
    assert "again, as run 2" in page


async def test_evaluator_that_fails_for_good_fails_the_job_and_is_named(world: World) -> None:
    world.machine("m", PROGRAMS, cpus=3)
    await world.settle()
    await world.begin("j", workers=1, module="endless.task", **FIELDS)
    await pass_time(world, *[30.0] * 13)
    detail = await world.detail("j")
    assert detail.state is JobState.FAILED
    assert [len(run.restarts) for run in detail.runs] == [5]
    assert detail.verdict is not None
    assert (detail.verdict.replica, detail.exit_code) == (EVALUATOR, 3)
    assert detail.verdict.last_lines == ("evaluates",)
