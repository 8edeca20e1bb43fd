"""The way of a job through server and agent, step by step, on a clock that only the test moves."""

import json
from pathlib import Path

from beds.world import World
from trainyard_agent.engines.fake import FOREVER, Exit, Print, Script, by_module
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.states import JobState, Reason, RunState

PROGRAMS = by_module(
    {
        "ok.task": {"*": Script(((0.0, Print("hello")), (1.0, Exit(0))))},
        "chief_ends.task": {
            "master-replica-0": Script(((1.0, Print("saved")), (2.0, Exit(0)))),
            "*": Script(((0.5, Print("working")),)),
        },
        "both_fail.task": {
            "master-replica-0": Script(((1.1, Print("peer is gone")), (1.2, Exit(1)))),
            "worker-replica-0": Script(((0.9, Print("out of range", "stderr")), (1.0, Exit(7)))),
        },
        "killed.task": {"*": Script(((1.0, Exit(137)),))},
        "forever.task": {"*": FOREVER},
        "talks.task": {"*": Script(tuple((10.0 * n, Print(f"line {n}")) for n in range(1000)))},
    }
)


async def after(world: World, seconds: float, job_id: str) -> JobDetail:
    world.clock.advance(seconds)
    await world.settle()
    return await world.detail(job_id)


async def test_first_failure_by_the_replicas_own_clocks_is_the_verdict(world: World) -> None:
    world.machine("m", PROGRAMS)
    await world.settle()
    await world.begin("j", workers=1, module="both_fail.task")
    detail = await after(world, 5.0, "j")
    assert detail.state is JobState.FAILED
    assert detail.verdict is not None
    assert (detail.verdict.replica, detail.exit_code) == ("worker-replica-0", 7)
    assert detail.verdict.last_lines == ("out of range",)
    assert detail.job["errorMessage"].startswith("The replica worker 0 exited with a non-zero status of 7.")


async def test_agent_that_is_back_after_its_lease_delivers_every_line_whenever_that_is(world: World) -> None:
    """Before the server has given it up, and after the next run has begun elsewhere."""
    first, second = world.machine("a", PROGRAMS, cpus=1), world.machine("b", PROGRAMS, cpus=1)
    await world.settle()
    for silent_s in (580.0, 700.0):
        job_id = f"after_{silent_s:g}_s"
        await world.begin(job_id, module="talks.task")
        home, other = (first, second) if first.host.runs else (second, first)
        (run_id,) = home.host.runs
        home.network.cut = True
        for _ in range(int(silent_s // 20)):
            world.clock.advance(20)
            await home.step()
            await other.step()
            world.tick()
        written = [line.text for line in home.runtime.read_log(run_id, "master-replica-0", 0, 1000, 1 << 20).lines]
        assert len(written) > 50
        home.network.cut = False
        await world.settle(8)
        detail = await world.detail(job_id)
        assert (detail.runs[0].run_id, detail.runs[0].state) == (run_id, RunState.ENDED)
        assert detail.runs[0].replicas[0].reason is Reason.HOST_LOST
        entries = await world.log(job_id)
        assert [e.text for e in entries if (e.run, e.task) == (1, "master-replica-0")] == written
        assert run_id not in home.host.runs, "it is removed once its log is there"
        damaged = [event for event in detail.events if event.kind == "log-damaged"]
        assert len(damaged) == sum(event.kind == "log-complete" for event in detail.events)
        await world.cancel(job_id)
        await world.settle(8)


async def test_log_of_a_run_whose_files_somebody_removed_may_lack_lines_and_that_of_an_unstarted_one_lacks_none(
    world: World,
) -> None:
    machine = world.machine("m", PROGRAMS)
    await world.settle()
    for job_id, seconds in (("early", 0.0), ("amid", 45.0)):
        await world.begin(job_id, module="talks.task")
        world.clock.advance(seconds)
        await world.settle()
        machine.host.runs.clear()
        await world.settle(8)
        detail = await world.detail(job_id)
        notices = [event.message for event in detail.events if event.kind == "log-damaged"]
        assert [message for message in notices if "may lack" in message], (job_id, notices)
        lines = [entry.text for entry in await world.log(job_id) if entry.run == 1]
        assert lines == [f"line {number}" for number in range(len(lines))]
    await world.cancel("early")
    await world.cancel("amid")
    await world.settle(8)
    await world.begin("unstarted", 8, module="missing.task")
    detail = await world.detail("unstarted")
    assert (detail.state, [event for event in detail.events if event.kind == "log-damaged"]) == (JobState.FAILED, [])


async def test_explain_prints_what_the_replica_was_started_with_byte_for_byte(world: World) -> None:
    machine = world.machine("m", PROGRAMS)
    # A name that the service sets too: the replica gets the service's.
    clash = {**machine.info.replica_environment, "RANK": "99", "MODE": "of the agent"}
    machine.info = machine.info.model_copy(update={"replica_environment": clash})
    machine.boot()
    await world.settle()
    env = {"MODE": "of the job", "TF_NUM_INTEROP_THREADS": "7"}
    await world.begin("j", workers=1, module="forever.task", args=["--x", "a b"], jobDir="gs://b/d", env=env)
    started: dict[str, Launch] = {launch.task: launch for _, launch in machine.host.launches}
    for task, launch in started.items():
        answer = await world.call("GET", f"/trainyard/v1/projects/p/jobs/j/explain?task={task}")
        explained = answer.json()
        assert explained["environment"] == dict(launch.environment)
        assert explained["environment"].items() >= env.items()
        assert explained["command"] == list(launch.command)
        assert explained["packages"] == []
    assert json.loads(started["worker-replica-0"].environment["TF_CONFIG"])["task"]["type"] == "worker"
    assert started["worker-replica-0"].command[-4:] == ("--x", "a b", "--job-dir", "gs://b/d")


def steps(*times: float, of: int = 1000, first: int = 1) -> tuple[tuple[float, Print], ...]:
    """A program that reports its next step at each of these times."""
    return tuple(
        (at, Print(json.dumps({"event": "progress", "step": step, "steps": of})))
        for step, at in enumerate(times, first)
    )


def checkpoint(at: float, step: int) -> tuple[float, Print]:
    return (at, Print(json.dumps({"event": "checkpoint", "step": step})))


async def minutes(world: World, count: int, job_id: str, stop: JobState | None = None) -> JobDetail:
    """Let this many minutes pass, in which everybody looks every twenty seconds; until the job is in a state."""
    for _ in range(3 * count):
        world.clock.advance(20.0)
        await world.settle(1)
        if stop is not None and (await world.detail(job_id)).state is stop:
            break
    return await world.detail(job_id)


async def test_steps_of_a_replica_are_known_while_it_runs_and_exact_at_the_verdict(world: World) -> None:
    script = Script((*steps(1, 2, 3, 4), checkpoint(4.5, 4), *steps(5, 6, first=5), (7.0, Exit(3))))
    world.machine("m", by_module({"t.task": {"*": script}}))
    await world.settle()
    await world.begin("j", module="t.task")
    (replica,) = (await after(world, 2.5, "j")).runs[0].replicas
    assert (replica.first_step, replica.step, replica.steps, replica.durable_step) == (1, 2, 1000, None)
    (replica,) = (await after(world, 2.5, "j")).runs[0].replicas
    assert (replica.step, replica.durable_step) == (5, 4)
    assert replica.step_at is not None
    assert replica.durable_at is not None
    assert (replica.step_at - replica.durable_at).total_seconds() == 0.5
    detail = await after(world, 5.0, "j")
    assert detail.verdict is not None
    assert (detail.verdict.reason, detail.verdict.step) == (Reason.PROGRAM_ERROR, 6)
    assert detail.runs[0].replicas[0].durable_step == 4


async def test_steps_are_right_at_the_verdict_though_the_server_died_before_it_wrote_any(world: World) -> None:
    script = Script((*steps(1, 2, 3), checkpoint(3.5, 3), (4.0, Exit(3))))
    machine = world.machine("m", by_module({"t.task": {"*": script}}))
    await world.settle()
    await world.begin("j", module="t.task")
    world.clock.advance(3.7)
    await machine.step(2)  # the lines are delivered; nothing of them was written yet
    world.restart_server()
    assert (await world.detail("j")).runs[0].replicas[0].step is None
    detail = await after(world, 5.0, "j")
    (replica,) = detail.runs[0].replicas
    assert (replica.first_step, replica.step, replica.durable_step) == (1, 3, 3)
    assert detail.verdict is not None
    assert detail.verdict.step == 3


async def test_run_that_stands_still_is_stopped_named_and_started_anew_until_the_budget_is_spent(world: World) -> None:
    hangs, waits = Script(steps(1, 2, 3, 4)), Script(steps(1, 2, 3, 4, 5))
    world.machine("m", by_module({"t.task": {"worker-replica-0": hangs, "*": waits}}))
    await world.settle()
    await world.submit("j", workers=2, module="t.task")
    assert (await minutes(world, 4, "j")).state is JobState.RUNNING
    detail = await minutes(world, 4, "j", JobState.QUEUED)
    (first, *_) = detail.runs
    assert first.verdict is not None
    assert (first.verdict.reason, first.verdict.replica, first.verdict.step) == (Reason.STALLED, "worker-replica-0", 4)
    assert "stands still at step 4 for 3" in first.verdict.message
    assert "the others wait at step 5" in first.verdict.message
    assert all("cannot be read" in replica.stacks for replica in first.replicas)
    detail = await minutes(world, 60, "j", JobState.FAILED)
    assert detail.state is JobState.FAILED
    assert len(detail.runs) == 1 + world.settings.retries
    assert detail.job["errorMessage"].startswith("The replica worker 0 stalled: worker-replica-0 stands still")
    assert [event.kind for event in detail.events].count("stalled") == len(detail.runs)


async def test_stall_that_is_only_reported_is_told_once_and_again_when_it_ends(world: World) -> None:
    script = Script((*steps(1, 2, 3, 4, 800, 801), (900.0, Exit(0))))
    world.machine("m", by_module({"t.task": {"*": script}}))
    await world.settle()
    await world.submit("j", module="t.task", labels={"trainyard_stall_action": "report"})
    detail = await minutes(world, 60, "j", JobState.SUCCEEDED)
    assert detail.state is JobState.SUCCEEDED
    assert len(detail.runs) == 1
    kinds = [event.kind for event in detail.events if event.kind in ("stalled", "moves-on")]
    assert kinds == ["stalled", "moves-on"]


async def test_replica_whose_log_quota_is_used_up_is_not_judged(tmp_path: Path) -> None:
    world = World(tmp_path, log_quota=2000)
    try:
        world.machine("m", by_module({"t.task": {"*": Script(steps(*range(1, 2000, 10)))}}))
        await world.settle()
        await world.submit("j", module="t.task")
        detail = await minutes(world, 30, "j")
        assert detail.runs[0].replicas[0].step in range(4, 60)
        assert detail.state is JobState.RUNNING
    finally:
        await world.close()
