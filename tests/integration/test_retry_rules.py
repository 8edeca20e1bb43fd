"""Retry rules, from the exit and the log of a replica to the next run on another machine."""

from beds.world import World
from trainyard_agent.engines.fake import Exit, Print, Script, by_module
from trainyard_agent.runtimes.base import KEPT, Keep
from trainyard_protocol.states import JobState

PROGRAMS = by_module(
    {
        "bad_data.task": {"*": Script(((0.5, Print("reading")), (1.0, Exit(33))))},
        "nccl.task": {"*": Script(((0.5, Print("NCCL error: unhandled cuda error", "stderr")), (1.0, Exit(1))))},
        "ecc.task": {"*": Script(((0.5, Print("CUDA error: uncorrectable ECC error", "stderr")), (1.0, Exit(1))))},
    }
)
RULES = [{"exitCodes": [33], "count": 2}, {"log": "NCCL.*unhandled", "count": 1, "otherHost": True}]


async def minutes(world: World, count: int) -> None:
    for _ in range(3 * count):
        world.clock.advance(20.0)
        await world.settle(2)


async def test_run_whose_exit_code_matches_is_followed_until_the_rule_is_used_up(world: World) -> None:
    world.machine("m", PROGRAMS)
    await world.settle()
    await world.submit("j", module="bad_data.task", scheduling={"retry": RULES})
    await minutes(world, 3)
    detail = await world.detail("j")
    assert (detail.state, detail.exit_code, len(detail.runs)) == (JobState.FAILED, 33, 3)
    notes = [run.verdict.retry for run in detail.runs if run.verdict is not None]
    clause = "Exit code 33 matched retry rule 1 (exitCodes: [33])"
    assert notes == [f"{clause}; {end}." for end in ("retry 1 of 2", "retry 2 of 2", "its 2 retries are used up")]
    lines = [entry.text for entry in await world.log("j")]
    assert f"{clause}: a new run starts in 1 s (retry 1 of 2)." in lines
    assert f"Job failed. {notes[-1]}" in lines
    why = (await world.call("GET", "/trainyard/v1/projects/p/jobs/j/why")).json()["summary"]
    assert why.endswith(notes[-1])


async def test_run_whose_log_matches_is_followed_by_one_on_another_machine(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, PROGRAMS, cpus=1)
    await world.settle()
    for job_id, module, scheduling in [("nccl", "nccl.task", {"retry": RULES}), ("ecc", "ecc.task", {})]:
        await world.submit(job_id, module=module, scheduling=scheduling)
        await minutes(world, 3)
        detail = await world.detail(job_id)
        assert detail.state is JobState.FAILED, job_id
        assert {run.agent for run in detail.runs} == {"a", "b"}, job_id
        assert len(detail.runs) == 2, job_id


async def test_failed_replica_is_kept_unless_its_exit_code_leads_to_another_run(world: World) -> None:
    machine = world.machine("m", PROGRAMS)
    await world.settle()
    rules = [{"exitCodes": [33], "count": 1}]
    await world.submit("j", module="bad_data.task", scheduling={"retry": rules, "keepOnFailure": "600s"})
    await minutes(world, 3)
    detail = await world.detail("j")
    assert (detail.state, len(detail.runs)) == (JobState.RUNNING, 2)
    assert [launch.keep for _, launch in machine.host.launches] == [Keep(600, "j", (33,)), Keep(600, "j")]
    assert any(KEPT in entry.text for entry in await world.log("j"))
    await minutes(world, 10)
    detail = await world.detail("j")
    assert (detail.state, detail.exit_code) == (JobState.FAILED, 33)


async def test_cancel_ends_what_is_kept(world: World) -> None:
    world.machine("m", PROGRAMS)
    await world.settle()
    await world.submit("j", module="bad_data.task", scheduling={"keepOnFailure": "600s"})
    await minutes(world, 1)
    assert (await world.detail("j")).state is JobState.RUNNING
    await world.cancel("j")
    await world.settle(6)
    assert (await world.detail("j")).state is JobState.CANCELLED
